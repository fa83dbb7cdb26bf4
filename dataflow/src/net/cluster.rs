//! The control plane: connections between all processes that live as long as the cluster.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handshake::{
    self, AuthKey, HANDSHAKE_TIME, Hello, Kind, Refusal, Verdict, answer, dial, listen_addresses, random,
    read_before,
};
use super::plane::{Link, Plane};
use super::spec::ClusterSpec;
use crate::Error;
use crate::job::{Job, lock};

/// How often a process says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a process may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// How long after a broken connection another process may still say why.
const GRACE: Duration = Duration::from_secs(1);
/// How often the watch looks.
const WATCH: Duration = Duration::from_millis(200);
/// How long the data connections of a run may take, once all processes have begun it.
const DATA_WAIT: Duration = Duration::from_secs(8);
/// How long closing may take where a peer does not answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a process may be gone again before all have met.
const COME_BACK: Duration = Duration::from_secs(3);
/// How long a process that does not fit stays, so that the others hear of it from itself.
const LINGER: Duration = Duration::from_secs(3);
/// Handshakes under way at a time; strangers beyond are hung up on.
const MOST_HANDSHAKES: usize = 64;
/// Refused connections that are told of.
const MOST_WARNINGS: usize = 20;
/// Longest message.
const MOST_BYTES: usize = 256 << 20;
/// Longest description of what a process was asked to do.
const SETTINGS_BYTES: usize = 2 << 20;

/// The kinds of messages on a control connection: a length, the kind, and so many bytes.
mod kind {
    pub(super) const HEARTBEAT: u8 = 0;
    pub(super) const READY: u8 = 1;
    pub(super) const START: u8 = 2;
    pub(super) const CALL: u8 = 3;
    pub(super) const FAILED: u8 = 4;
    pub(super) const RUN: u8 = 5;
    pub(super) const RUN_FAILED: u8 = 6;
    pub(super) const RUN_DONE: u8 = 7;
    pub(super) const BYE: u8 = 8;
    pub(super) const REPORT: u8 = 9;
}

/// The collective calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Call {
    Broadcast = b'b',
    Gather = b'g',
    Barrier = b'w',
}

/// The processes of one job, as one of them sees them. Clones are the same cluster; when the last one goes, the others are told that this
/// process has ended.
///
/// The collective calls ([`broadcast`](Self::broadcast), [`gather`](Self::gather), [`barrier`](Self::barrier), and [`run`](crate::run) with
/// [`Options::cluster`](crate::Options::cluster)) have to be made by all processes, in the same order, from one thread at a time. They wait
/// for as long as the others live; a process that is silent for five seconds, or whose connection breaks, is lost, and then all calls end
/// with an error that names it. Holds three threads, and two for each other process.
#[derive(Clone)]
pub struct Cluster(Arc<Handle>);

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cluster(process {} of {})", self.index(), self.len())
    }
}

/// Closes the cluster when it goes.
struct Handle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    listening: Option<SocketAddr>,
}

/// What all threads of the cluster share.
pub(crate) struct Shared {
    spec: ClusterSpec,
    key: AuthKey,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
    closing: AtomicBool,
    handshakes: AtomicUsize,
    connections: AtomicU64,
    report: Mutex<(u64, Vec<u8>)>,
}

#[derive(Default)]
struct State {
    failure: Option<Failure>,
    peers: Vec<Peer>,
    /// Set by process 0 when all have met.
    session: Option<[u8; 16]>,
    /// Collective calls so far.
    calls: u64,
    /// Runs so far.
    runs: u64,
    current: Option<Arc<Plane>>,
    /// Who has begun which run, with how many workers and how much memory.
    begun: HashMap<(u64, usize), (u64, u64)>,
    done: HashSet<(u64, usize)>,
    run_failures: HashMap<u64, Failure>,
    /// Data connections that came in for the current run.
    data: HashMap<usize, TcpStream>,
    warned: HashSet<(IpAddr, String)>,
}

/// Another process.
#[derive(Default)]
struct Peer {
    connection: Option<Arc<Connection>>,
    /// Has connections to all others.
    ready: bool,
    /// Has said goodbye.
    ended: bool,
    /// When and how its connection broke.
    broken: Option<(Instant, String)>,
    inbox: VecDeque<Vec<u8>>,
    report: Option<Vec<u8>>,
    /// Knows that the processes do not fit together.
    told: bool,
    /// When it went again before all had met.
    gone: Option<Instant>,
    /// Why it isn't connected yet.
    trouble: Option<String>,
    moved: (u64, u64),
}

/// A control connection.
struct Connection {
    id: u64,
    outbox: mpsc::Sender<Out>,
    stream: TcpStream,
    /// Milliseconds after the start when something last came in.
    heard: AtomicU64,
    /// Whether the thread that reads has ended.
    read_out: AtomicBool,
}

impl Connection {
    fn send(&self, kind: u8, payload: impl Into<Arc<[u8]>>) {
        // A writer that has gone has left its error.
        let _ = self.outbox.send(Out::Frame(kind, payload.into()));
    }
}

enum Out {
    Frame(u8, Arc<[u8]>),
    Goodbye,
}

/// Why all ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The process that says so.
    origin: usize,
    /// The process that was lost, if that is why.
    lost: Option<usize>,
    /// Whether the text is the same for all, whoever says it.
    common: bool,
    text: String,
}

/// What a process says of itself when it meets another.
#[derive(Debug, Serialize, Deserialize)]
struct Settings {
    version: String,
    processes: usize,
    arguments: Vec<String>,
}

impl Cluster {
    /// Meets the other processes.
    ///
    /// Listens on this process's host, connects to all others, and returns when all are connected to all, know the same secret, and have the same
    /// version and arguments.
    ///
    /// # Errors
    ///
    /// [`Error::Cluster`], on every process that can be told: processes that did not come in time, by name; another secret, version, arguments
    /// or number of processes, and whose; a host that cannot be listened on.
    pub fn connect(spec: ClusterSpec) -> Result<Self, Error> {
        spec.check()?;
        let count = spec.hosts.len();
        let deadline = Instant::now() + spec.wait;
        let shared = Arc::new(Shared {
            key: AuthKey::new(&spec.secret),
            started: Instant::now(),
            state: Mutex::new(State {
                peers: (0..count).map(|_| Peer::default()).collect(),
                ..State::default()
            }),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
            handshakes: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            report: Mutex::default(),
            spec,
        });
        let mut handle = Handle {
            shared: shared.clone(),
            threads: Vec::new(),
            listening: None,
        };
        if count > 1 {
            let listener = shared.listen(deadline)?;
            handle.listening = listener.local_addr().ok();
            handle.spawn("cluster accept", {
                let shared = shared.clone();
                move || shared.accept(&listener)
            })?;
            handle.spawn("cluster watch", {
                let shared = shared.clone();
                move || shared.watch()
            })?;
            for peer in 0..shared.spec.index {
                let shared = shared.clone();
                // Not joined: a name may take long to resolve.
                spawn("cluster dial", move || shared.keep_dialling(peer, deadline))?;
            }
            shared.meet(deadline)?;
        }
        Ok(Self(Arc::new(handle)))
    }

    /// Which process this is, from 0.
    pub fn index(&self) -> usize {
        self.0.shared.spec.index
    }

    /// The number of processes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a cluster has at least this process")]
    pub fn len(&self) -> usize {
        self.0.shared.spec.hosts.len()
    }

    /// Whether this is process 0, which decides where one has to.
    pub fn is_leader(&self) -> bool {
        self.index() == 0
    }

    /// `process 2 (node2:7171)`, as errors name it.
    pub fn name(&self, process: usize) -> String {
        self.0.shared.spec.name(process)
    }

    /// Gives the leader's value to all processes: the leader passes `Some`, the others get it. Up to 256 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], [`Error::Remote`] or [`Error::Cluster`] if a process is lost or fails meanwhile; the leader gave no value.
    pub fn broadcast(&self, value: Option<Vec<u8>>) -> Result<Vec<u8>, Error> {
        let shared = &self.0.shared;
        let call = shared.begin_call()?;
        if !self.is_leader() {
            return shared.receive(0, call, Call::Broadcast);
        }
        let value = value.ok_or_else(|| Error::Cluster("the leader has no value to broadcast".into()))?;
        let message = frame_call(call, Call::Broadcast, &value)?;
        for peer in 1..self.len() {
            shared.send(peer, kind::CALL, message.clone())?;
        }
        Ok(value)
    }

    /// Brings a value of each process to the leader, which gets them by process; the others get `None`. Up to 256 MiB each. The leader then knows
    /// what the processes [reported](Self::report) before.
    ///
    /// # Errors
    ///
    /// As [`broadcast`](Self::broadcast).
    pub fn gather(&self, value: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let shared = &self.0.shared;
        let call = shared.begin_call()?;
        if !self.is_leader() {
            // What was reported before is known to the leader when it has the value, and not a heartbeat later.
            let (number, report) = lock(&shared.report).clone();
            if number > 0 {
                shared.send(0, kind::REPORT, report.into())?;
            }
            shared.send(0, kind::CALL, frame_call(call, Call::Gather, &value)?)?;
            return Ok(None);
        }
        let mut values = vec![value];
        for peer in 1..self.len() {
            values.push(shared.receive(peer, call, Call::Gather)?);
        }
        Ok(Some(values))
    }

    /// Returns when all processes have called it.
    ///
    /// # Errors
    ///
    /// As [`broadcast`](Self::broadcast).
    pub fn barrier(&self) -> Result<(), Error> {
        let shared = &self.0.shared;
        let call = shared.begin_call()?;
        let message = frame_call(call, Call::Barrier, &[])?;
        if !self.is_leader() {
            shared.send(0, kind::CALL, message)?;
            return shared.receive(0, call, Call::Barrier).map(drop);
        }
        for peer in 1..self.len() {
            shared.receive(peer, call, Call::Barrier)?;
        }
        for peer in 1..self.len() {
            shared.send(peer, kind::CALL, message.clone())?;
        }
        Ok(())
    }

    /// Ends everybody: the calls and runs of all processes, now and from now on, return an error with this cause. The first cause counts.
    pub fn fail(&self, cause: &str) {
        let shared = &self.0.shared;
        shared.fail(Failure {
            origin: shared.spec.index,
            lost: None,
            common: false,
            text: cause.to_owned(),
        });
    }

    /// Why the cluster has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        let shared = &self.0.shared;
        let state = shared.lock();
        state.failure.as_ref().map(|failure| shared.error(failure))
    }

    /// Publishes how far this process is; the leader sees the last such value of each process, about a second later. Up to 1 MiB: longer ones
    /// are dropped.
    pub fn report(&self, value: Vec<u8>) {
        if value.len() > 1 << 20 {
            return;
        }
        if self.is_leader() {
            self.0.shared.lock().peers[0].report = Some(value);
        } else {
            let mut report = lock(&self.0.shared.report);
            *report = (report.0 + 1, value);
        }
    }

    /// The last report of each process, by process; on other processes than the leader, nothing but `None`s.
    pub fn reports(&self) -> Vec<Option<Vec<u8>>> {
        let state = self.0.shared.lock();
        state.peers.iter().map(|peer| peer.report.clone()).collect()
    }

    /// Begins a run together with all other processes: agrees on it, and connects.
    pub(crate) fn begin_run(&self, workers: usize, memory: usize, job: &Arc<Job>) -> Result<Begun, Error> {
        self.0.shared.begin_run(workers, memory, job)
    }

    /// Ends a run: where it went well, waits until it has gone well everywhere.
    pub(crate) fn end_run(&self, plane: &Plane, job: &Job) {
        self.0.shared.end_run(plane, job);
    }

    /// Ends a run that could not be begun.
    pub(crate) fn give_up_run(&self, job: &Job) {
        let plane = self.0.shared.lock().current.clone();
        // A run of another job stays.
        if let Some(plane) = plane.filter(|plane| std::ptr::eq(&*plane.job, job)) {
            self.0.shared.end_run(&plane, job);
        }
    }
}

/// A run that all processes have begun.
pub(crate) struct Begun {
    pub(crate) plane: Arc<Plane>,
    /// By process; none for this one.
    pub(crate) links: Vec<Option<Link>>,
    /// The smallest budget of all processes: they have to make the same plans.
    pub(crate) memory: usize,
}

impl Handle {
    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        self.threads.push(spawn(name, body)?);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = &self.shared;
        if std::thread::panicking() {
            shared.fail(Failure {
                origin: shared.spec.index,
                lost: None,
                common: false,
                text: "it panicked".into(),
            });
        }
        shared.closing.store(true, SeqCst);
        shared.changed.notify_all();
        let connections: Vec<Arc<Connection>> = {
            let state = shared.lock();
            state
                .peers
                .iter()
                .filter_map(|peer| peer.connection.clone())
                .collect()
        };
        for connection in &connections {
            let _ = connection.outbox.send(Out::Goodbye);
        }
        // What was sent last is lost where the system still holds something unread when the connection is closed.
        let deadline = Instant::now() + FAREWELL;
        let mut state = shared.lock();
        while connections
            .iter()
            .any(|connection| !connection.read_out.load(SeqCst))
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.wait(state, left);
        }
        drop(state);
        for connection in &connections {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        if let Some(mut address) = self.listening {
            // Wakes the listener, which then sees that it's over.
            if address.ip().is_unspecified() {
                address.set_ip(match address {
                    SocketAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
                    SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
                });
            }
            let _ = TcpStream::connect_timeout(&address, FAREWELL);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // Our threads don't panic; if one did, there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(body)
        .map_err(|error| Error::Start(format!("a thread of the cluster: {error}")))
}

fn frame_call(call: u64, op: Call, value: &[u8]) -> Result<Arc<[u8]>, Error> {
    if value.len() > MOST_BYTES - 64 {
        return Err(Error::Cluster(format!(
            "a message of {} bytes is more than the {MOST_BYTES} that can be sent",
            value.len()
        )));
    }
    let mut message = Vec::with_capacity(9 + value.len());
    message.extend(call.to_le_bytes());
    message.push(op as u8);
    message.extend(value);
    Ok(message.into())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

fn numbers(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

// Meeting.
impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        self.changed
            .wait_timeout(state, most)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn listen(&self, deadline: Instant) -> Result<TcpListener, Error> {
        let host = &self.spec.hosts[self.spec.index];
        loop {
            let mut first = None;
            for address in listen_addresses(host) {
                match TcpListener::bind(address) {
                    Ok(listener) => return Ok(listener),
                    Err(error) => {
                        let in_use = error.kind() == io::ErrorKind::AddrInUse;
                        first.get_or_insert(error);
                        if in_use {
                            break;
                        }
                    }
                }
            }
            let error = first.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
            // An earlier run that was killed may take a moment to go.
            if error.kind() != io::ErrorKind::AddrInUse || Instant::now() >= deadline {
                let index = self.spec.index;
                return Err(Error::Cluster(format!(
                    "process {index} could not listen on its host `{host}`: {error}"
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.closing.load(SeqCst) {
                return;
            }
            let Ok((stream, address)) = accepted else {
                // Out of descriptors, or a connection that has gone again.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if self.handshakes.fetch_add(1, SeqCst) >= MOST_HANDSHAKES {
                self.handshakes.fetch_sub(1, SeqCst);
                self.refused(address.ip(), "there are too many at a time".into());
                continue;
            }
            let shared = self.clone();
            let started = spawn("cluster greet", move || {
                if let Err(refusal) = shared.greet(stream) {
                    shared.refused(address.ip(), refusal.to_string());
                }
                shared.handshakes.fetch_sub(1, SeqCst);
            });
            if started.is_err() {
                self.handshakes.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Tells of a refused connection, once for each address and reason.
    fn refused(&self, from: IpAddr, reason: String) {
        if self.closing.load(SeqCst) {
            return;
        }
        let text = {
            let mut state = self.lock();
            if state.warned.len() >= MOST_WARNINGS || !state.warned.insert((from, reason.clone())) {
                return;
            }
            let last = if state.warned.len() == MOST_WARNINGS {
                "; no more of these are told"
            } else {
                ""
            };
            format!("refused a connection from {from}: {reason}{last}")
        };
        (self.spec.warn)(text);
    }

    /// Finds out who has connected, and takes the connection where it is one of ours.
    fn greet(self: &Arc<Self>, stream: TcpStream) -> Result<(), Refusal> {
        let hello = handshake::receive(&stream, &self.key)?;
        let (from, index) = (hello.from as usize, self.spec.index);
        let refuse = |verdict, refusal| {
            answer(&stream, verdict)?;
            Err(refusal)
        };
        if hello.to as usize != index {
            return refuse(Verdict::Misdirected, Refusal::Misdirected(hello.to));
        }
        if hello.kind == Kind::Control {
            {
                let state = self.lock();
                let has = state
                    .peers
                    .get(from)
                    .is_some_and(|peer| peer.connection.is_some());
                if has || state.session.is_some() {
                    drop(state);
                    return refuse(Verdict::Busy, Refusal::Busy);
                }
            }
            answer(&stream, Verdict::Welcome)?;
            return self.introduce(stream, from);
        }
        let expected = |state: &State| {
            from > index
                && from < state.peers.len()
                && state.session == Some(hello.session)
                && state
                    .current
                    .as_ref()
                    .is_some_and(|plane| plane.number == hello.run)
                && !state.data.contains_key(&from)
        };
        let mut state = self.lock();
        if !expected(&state) {
            drop(state);
            return refuse(Verdict::Unexpected, Refusal::Unexpected);
        }
        answer(&stream, Verdict::Welcome)?;
        state.data.insert(from, stream);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Connects to a process and, until all have met, again where the connection breaks.
    fn keep_dialling(self: &Arc<Self>, peer: usize, deadline: Instant) {
        loop {
            {
                let state = self.lock();
                let over = state.session.is_some() || state.peers[peer].told;
                if over || self.closing.load(SeqCst) || Instant::now() >= deadline {
                    return;
                }
                if state.peers[peer].connection.is_some() {
                    drop(self.wait(state, Duration::from_millis(100)));
                    continue;
                }
            }
            let dialled = self
                .hello(Kind::Control, peer, [0; 16], 0)
                .and_then(|hello| dial(&self.spec.hosts[peer], hello, &self.key))
                .and_then(|stream| self.introduce(stream, peer));
            match dialled {
                Ok(()) => {}
                // No hope that this changes.
                Err(refusal @ (Refusal::Secret | Refusal::Protocol(_))) => {
                    self.fail(Failure {
                        origin: self.spec.index,
                        lost: None,
                        common: true,
                        text: format!(
                            "{} and {} do not fit together: {refusal}",
                            self.spec.name(self.spec.index),
                            self.spec.name(peer)
                        ),
                    });
                    return;
                }
                Err(refusal) => {
                    self.lock().peers[peer].trouble = Some(refusal.to_string());
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn hello(&self, kind: Kind, to: usize, session: [u8; 16], run: u64) -> Result<Hello, Refusal> {
        Ok(Hello {
            kind,
            from: self.spec.index as u32,
            to: to as u32,
            session,
            run,
            nonce: random()?,
        })
    }

    /// Exchanges settings over an authenticated connection, and takes it if they are equal.
    fn introduce(self: &Arc<Self>, stream: TcpStream, peer: usize) -> Result<(), Refusal> {
        let own = Settings {
            version: self.spec.version.clone(),
            processes: self.spec.hosts.len(),
            arguments: self.spec.arguments.clone(),
        };
        let text = serde_json::to_vec(&own).map_err(io::Error::other)?;
        let deadline = Instant::now() + HANDSHAKE_TIME;
        stream.set_write_timeout(Some(HANDSHAKE_TIME))?;
        let mut writer = &stream;
        writer.write_all(&(text.len() as u32).to_le_bytes())?;
        writer.write_all(&text)?;
        let mut length = [0; 4];
        read_before(&stream, &mut length, deadline)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > SETTINGS_BYTES {
            return Err(Refusal::NotOurs);
        }
        let mut text = vec![0; length];
        read_before(&stream, &mut text, deadline)?;
        let other: Settings = serde_json::from_slice(&text).map_err(|_| Refusal::NotOurs)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        if let Some(text) = self.difference(&own, &other, peer) {
            self.fail(Failure {
                origin: self.spec.index,
                lost: None,
                common: true,
                text,
            });
            if let Some(peer) = self.lock().peers.get_mut(peer) {
                peer.told = true;
            }
            self.changed.notify_all();
            return Ok(());
        }
        self.take(stream, peer)
    }

    /// How another process's settings differ from ours, in words that are the same on both sides.
    fn difference(&self, own: &Settings, other: &Settings, peer: usize) -> Option<String> {
        let index = self.spec.index;
        let ours_first = index < peer;
        // The lower process comes first, so that both say the same.
        let order = |ours: String, theirs: String| {
            if ours_first {
                [ours, theirs]
            } else {
                [theirs, ours]
            }
        };
        let [first, second] = order(self.spec.name(index), self.spec.name(peer));
        if own.version != other.version {
            let [left, right] = order(own.version.clone(), other.version.clone());
            return Some(format!(
                "{first} and {second} are different versions of the program: {left} and {right}"
            ));
        }
        if own.processes != other.processes {
            let [left, right] = order(own.processes.to_string(), other.processes.to_string());
            return Some(format!(
                "{first} and {second} were given different lists of hosts: of {left} and of {right} processes"
            ));
        }
        if own.arguments != other.arguments {
            let only = |these: &[String], those: &[String]| {
                let shown: Vec<String> = these
                    .iter()
                    .filter(|argument| !those.contains(argument))
                    .map(|argument| format!("`{argument}`"))
                    .collect();
                match &shown[..] {
                    [] => "nothing more".to_owned(),
                    [first, second, third, fourth, _, ..] => {
                        format!("{first}, {second}, {third}, {fourth} and more")
                    }
                    all => all.join(", "),
                }
            };
            let [left, right] = order(
                only(&own.arguments, &other.arguments),
                only(&other.arguments, &own.arguments),
            );
            return Some(format!(
                "{first} and {second} were given different arguments: {left} and {right}"
            ));
        }
        None
    }

    /// Makes a connection the one to its process.
    fn take(self: &Arc<Self>, stream: TcpStream, peer: usize) -> Result<(), Refusal> {
        let (outbox, queue) = mpsc::channel();
        let (reading, writing) = (stream.try_clone()?, stream.try_clone()?);
        let connection = Arc::new(Connection {
            id: self.connections.fetch_add(1, Relaxed),
            outbox,
            stream,
            heard: AtomicU64::new(self.now()),
            read_out: AtomicBool::new(false),
        });
        {
            let mut state = self.lock();
            match state.peers.get_mut(peer) {
                Some(slot) if slot.connection.is_none() && peer != self.spec.index => {
                    slot.connection = Some(connection.clone());
                    slot.ready = false;
                    slot.gone = None;
                    // It comes late, and has to hear that there is nothing to come to.
                    if let Some(failure) = &state.failure
                        && let Ok(text) = serde_json::to_vec(failure)
                    {
                        connection.send(kind::FAILED, text);
                    }
                }
                _ => return Err(Refusal::Busy),
            }
        }
        let started = spawn("cluster read", {
            let (shared, connection) = (self.clone(), connection.clone());
            move || {
                let reason = shared.read(peer, reading, &connection);
                connection.read_out.store(true, SeqCst);
                shared.broke(peer, connection.id, reason);
            }
        })
        .and_then(|_| {
            let (shared, connection) = (self.clone(), connection.clone());
            spawn("cluster write", move || {
                shared.write(peer, writing, &queue, &connection)
            })
        });
        if let Err(error) = started {
            connection.read_out.store(true, SeqCst);
            return Err(Refusal::Io(io::Error::other(error.to_string())));
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until all are connected to all.
    fn meet(&self, deadline: Instant) -> Result<(), Error> {
        let index = self.spec.index;
        // The connection over which this process has said that it is ready.
        let mut told = None;
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                let error = self.error(failure);
                let begun = Instant::now();
                // What ends all is known, but not yet to all.
                while begun.elapsed() < LINGER
                    && (0..state.peers.len()).any(|peer| {
                        let peer_state = &state.peers[peer];
                        peer != index
                            && peer_state.connection.is_none()
                            && !peer_state.told
                            && !peer_state.ended
                    })
                {
                    state = self.wait(state, WATCH);
                }
                return Err(error);
            }
            let missing: Vec<usize> = (0..state.peers.len())
                .filter(|peer| *peer != index && state.peers[*peer].connection.is_none())
                .collect();
            if state.session.is_some() {
                return Ok(());
            }
            if missing.is_empty() && index == 0 {
                if state.peers[1..].iter().all(|peer| peer.ready) {
                    let session = random()
                        .map_err(|error| Error::Cluster(format!("there is no randomness: {error}")))?;
                    state.session = Some(session);
                    for connection in state.peers.iter().filter_map(|peer| peer.connection.as_ref()) {
                        connection.send(kind::START, session.to_vec());
                    }
                    return Ok(());
                }
            } else if missing.is_empty()
                && let Some(connection) = &state.peers[0].connection
                && told != Some(connection.id)
            {
                told = Some(connection.id);
                connection.send(kind::READY, Vec::new());
            }
            let went = state.peers.iter().enumerate().find_map(|(process, peer)| {
                let reason = "it went before all had met".to_owned();
                (peer.gone?.elapsed() > COME_BACK).then_some((process, reason))
            });
            if let Some((process, text)) = went {
                drop(state);
                self.fail(Failure {
                    origin: index,
                    lost: Some(process),
                    common: false,
                    text,
                });
                state = self.lock();
                continue;
            }
            let now = Instant::now();
            let late = if missing.is_empty() {
                HANDSHAKE_TIME
            } else {
                Duration::ZERO
            };
            if now >= deadline + late {
                let text = self.absent(&state, &missing);
                drop(state);
                self.fail(Failure {
                    origin: index,
                    lost: None,
                    common: true,
                    text: text.clone(),
                });
                return Err(Error::Cluster(text));
            }
            let left = (deadline + late).saturating_duration_since(now);
            state = self.wait(state, left.min(WATCH));
        }
    }

    /// Names the processes that did not come.
    fn absent(&self, state: &State, missing: &[usize]) -> String {
        let wait = self.spec.wait.as_secs_f64();
        let shown = |peer: &usize| {
            let trouble = state.peers[*peer].trouble.as_ref();
            let trouble = trouble.map_or(String::new(), |trouble| format!(": {trouble}"));
            format!("{}{trouble}", self.spec.name(*peer))
        };
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(shown).collect();
            return format!("did not come up within {wait} seconds: {}", names.join(", "));
        }
        let slow: Vec<String> = match self.spec.index {
            0 => (1..state.peers.len())
                .filter(|peer| !state.peers[*peer].ready)
                .map(|peer| self.spec.name(peer))
                .collect(),
            _ => vec![self.spec.name(0)],
        };
        format!(
            "did not meet the other processes within {wait} seconds: {}",
            slow.join(", ")
        )
    }
}

// What comes and goes over control connections.
impl Shared {
    /// Reads messages until the connection ends; says why it did.
    fn read(&self, peer: usize, mut stream: TcpStream, connection: &Connection) -> String {
        let mut fill = |bytes: &mut [u8]| -> Result<(), String> {
            let mut filled = 0;
            while filled < bytes.len() {
                match stream.read(&mut bytes[filled..]) {
                    Ok(0) => return Err("it closed the connection".into()),
                    Ok(count) => {
                        filled += count;
                        connection.heard.store(self.now(), Relaxed);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(format!("its connection broke: {error}")),
                }
            }
            Ok(())
        };
        loop {
            let mut header = [0; 5];
            if let Err(reason) = fill(&mut header) {
                return reason;
            }
            let [a, b, c, d, kind] = header;
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            if length > MOST_BYTES {
                return format!("it sent a message of {length} bytes");
            }
            let mut payload = Vec::new();
            while payload.len() < length {
                // Room is made as bytes come, not as they are announced.
                let start = payload.len();
                payload.resize(length.min(start + (256 << 10)), 0);
                if let Err(reason) = fill(&mut payload[start..]) {
                    return reason;
                }
            }
            if let Err(reason) = self.handle(peer, kind, payload, connection) {
                return reason;
            }
        }
    }

    /// Acts on a message.
    fn handle(&self, peer: usize, kind: u8, payload: Vec<u8>, connection: &Connection) -> Result<(), String> {
        let bad = || "it sent something that cannot be understood".to_owned();
        match kind {
            kind::HEARTBEAT => {
                let moved = (
                    number(&payload, 0).ok_or_else(bad)?,
                    number(&payload, 8).ok_or_else(bad)?,
                );
                let mut state = self.lock();
                if std::mem::replace(&mut state.peers[peer].moved, moved) != moved
                    && let Some(plane) = state.current.as_ref().filter(|plane| plane.number == moved.0)
                {
                    plane.job.tick_elsewhere();
                }
                return Ok(());
            }
            kind::READY => self.lock().peers[peer].ready = true,
            kind::START => {
                let session = payload.try_into().map_err(|_| bad())?;
                self.lock().session = Some(session);
            }
            kind::CALL => self.lock().peers[peer].inbox.push_back(payload),
            kind::REPORT => self.lock().peers[peer].report = Some(payload),
            kind::FAILED => self.fail(serde_json::from_slice(&payload).map_err(|_| bad())?),
            kind::RUN => {
                let field = |at| number(&payload, at).ok_or_else(bad);
                let (run, spec) = (field(0)?, (field(8)?, field(16)?));
                self.lock().begun.insert((run, peer), spec);
            }
            kind::RUN_FAILED => {
                let run = number(&payload, 0).ok_or_else(bad)?;
                let failure: Failure = serde_json::from_slice(&payload[8..]).map_err(|_| bad())?;
                self.run_failed_elsewhere(run, failure);
            }
            kind::RUN_DONE => {
                let run = number(&payload, 0).ok_or_else(bad)?;
                self.lock().done.insert((run, peer));
            }
            kind::BYE => {
                self.lock().peers[peer].ended = true;
                // Nothing more is of interest there; so it can leave.
                let _ = connection.outbox.send(Out::Goodbye);
            }
            _ => return Err(bad()),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Writes messages as they come, and a heartbeat each second.
    fn write(
        &self,
        peer: usize,
        mut stream: TcpStream,
        queue: &mpsc::Receiver<Out>,
        connection: &Connection,
    ) {
        let mut last = Instant::now();
        let mut reported = 0;
        let mut put = |kind: u8, payload: &[u8]| -> io::Result<()> {
            let [a, b, c, d] = (payload.len() as u32).to_le_bytes();
            if payload.len() <= 4096 {
                let mut message = vec![a, b, c, d, kind];
                message.extend(payload);
                return stream.write_all(&message);
            }
            stream.write_all(&[a, b, c, d, kind])?;
            stream.write_all(payload)
        };
        loop {
            let written = match queue.recv_timeout(HEARTBEAT.saturating_sub(last.elapsed())) {
                Ok(Out::Frame(kind, payload)) => put(kind, &payload),
                Ok(Out::Goodbye) => {
                    let _ = put(kind::BYE, &[]);
                    let _ = connection.stream.shutdown(Shutdown::Write);
                    return;
                }
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let beat = |put: &mut dyn FnMut(u8, &[u8]) -> io::Result<()>, reported: &mut u64| {
                let (run, moved) = {
                    let state = self.lock();
                    let current = state.current.as_ref();
                    current.map_or((0, 0), |plane| (plane.number, plane.job.moved()))
                };
                put(kind::HEARTBEAT, &numbers(&[run, moved]))?;
                let report = lock(&self.report).clone();
                if peer == 0 && report.0 > *reported {
                    *reported = report.0;
                    put(kind::REPORT, &report.1)?;
                }
                Ok(())
            };
            let written = written.and_then(|()| {
                if last.elapsed() < HEARTBEAT {
                    return Ok(());
                }
                last = Instant::now();
                beat(&mut put, &mut reported)
            });
            if let Err(error) = written {
                // The reader notices too, and may still find a cause in what was sent before.
                let ended = self.lock().peers[peer].ended;
                if !ended {
                    self.broke(peer, connection.id, format!("its connection broke: {error}"));
                }
                return;
            }
        }
    }

    /// Notes that a connection has ended.
    fn broke(&self, peer: usize, connection: u64, reason: String) {
        let mut state = self.lock();
        let met = state.session.is_some();
        let slot = &mut state.peers[peer];
        if slot
            .connection
            .as_ref()
            .is_some_and(|current| current.id == connection)
        {
            if met {
                slot.broken.get_or_insert((Instant::now(), reason));
            } else {
                // It may come again.
                slot.connection = None;
                slot.ready = false;
                slot.gone = Some(Instant::now());
                slot.trouble = Some(reason);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Looks for processes that are silent or lost.
    fn watch(&self) {
        let mut looked = Instant::now();
        let mut excused = self.now();
        while !self.closing.load(SeqCst) {
            std::thread::park_timeout(WATCH);
            if looked.elapsed() > WATCH + HEARTBEAT {
                // This process itself was stopped, or had no time: what came meanwhile is read first.
                excused = self.now();
            }
            looked = Instant::now();
            let mut lost = None;
            {
                let mut state = self.lock();
                if state.session.is_none() || state.failure.is_some() {
                    continue;
                }
                let now = self.now();
                let current = state.current.clone();
                for (process, peer) in state.peers.iter_mut().enumerate() {
                    let Some(connection) = &peer.connection else {
                        continue;
                    };
                    let heard = connection.heard.load(Relaxed).max(excused);
                    if !peer.ended
                        && peer.broken.is_none()
                        && now.saturating_sub(heard) > SILENCE.as_millis() as u64
                    {
                        let reason = format!("nothing was heard from it for {} seconds", SILENCE.as_secs());
                        peer.broken = Some((Instant::now(), reason));
                        let _ = connection.stream.shutdown(Shutdown::Both);
                    }
                    if !peer.ended
                        && let Some((since, reason)) = &peer.broken
                        && since.elapsed() >= GRACE
                    {
                        lost.get_or_insert((process, reason.clone()));
                    }
                }
                // Who is done with the run closes its data connections, while this process may still wait for another one's word.
                if lost.is_none()
                    && let Some(plane) = current
                    && let Some((process, reason)) = plane.lost(GRACE)
                    && !state.done.contains(&(plane.number, process))
                {
                    lost = Some((process, reason));
                }
            }
            if let Some((process, text)) = lost {
                self.fail(Failure {
                    origin: self.spec.index,
                    lost: Some(process),
                    common: false,
                    text,
                });
            }
        }
    }

    /// Ends all calls and runs, here and elsewhere.
    fn fail(&self, failure: Failure) {
        let plane = {
            let mut state = self.lock();
            if state.failure.is_some() {
                return;
            }
            // Passed on by all that hear of it: where one end of a connection is gone, the word may come another way.
            if let Ok(text) = serde_json::to_vec(&failure) {
                let text: Arc<[u8]> = text.into();
                for connection in state.peers.iter().filter_map(|peer| peer.connection.as_ref()) {
                    connection.send(kind::FAILED, text.clone());
                }
            }
            state.failure = Some(failure.clone());
            state.current.clone()
        };
        if let Some(plane) = plane {
            plane.fail_from_cluster(self.error(&failure));
        }
        self.changed.notify_all();
    }

    /// A failure as this process sees it.
    fn error(&self, failure: &Failure) -> Error {
        let index = self.spec.index;
        let address = |process: usize| self.spec.hosts.get(process).cloned().unwrap_or_default();
        match failure.lost {
            Some(lost) if lost == index => Error::Cluster(format!(
                "{} gave this process up: {}",
                self.spec.name(failure.origin),
                failure.text
            )),
            Some(process) => Error::Lost {
                process,
                address: address(process),
                reason: failure.text.clone(),
            },
            None if failure.common || failure.origin == index => Error::Cluster(failure.text.clone()),
            None => Error::Remote {
                process: failure.origin,
                address: address(failure.origin),
                cause: failure.text.clone(),
            },
        }
    }
}

// Collective calls and runs.
impl Shared {
    fn check(&self, state: &State) -> Result<(), Error> {
        match &state.failure {
            Some(failure) => Err(self.error(failure)),
            None => Ok(()),
        }
    }

    fn begin_call(&self) -> Result<u64, Error> {
        let mut state = self.lock();
        self.check(&state)?;
        state.calls += 1;
        Ok(state.calls)
    }

    fn send(&self, peer: usize, kind: u8, payload: Arc<[u8]>) -> Result<(), Error> {
        let state = self.lock();
        self.check(&state)?;
        self.check_ended(&state, peer)?;
        if let Some(connection) = &state.peers[peer].connection {
            connection.send(kind, payload);
        }
        Ok(())
    }

    fn check_ended(&self, state: &State, peer: usize) -> Result<(), Error> {
        if !state.peers[peer].ended {
            return Ok(());
        }
        Err(Error::Lost {
            process: peer,
            address: self.spec.hosts[peer].clone(),
            reason: "it ended before the job was done".into(),
        })
    }

    /// The next message of a collective call from a process.
    fn receive(&self, peer: usize, call: u64, op: Call) -> Result<Vec<u8>, Error> {
        let mut state = self.lock();
        loop {
            // What has arrived counts, even if the sender has since failed or left.
            if let Some(mut message) = state.peers[peer].inbox.pop_front() {
                let (theirs, their_op) = (number(&message, 0), message.get(8).copied());
                if (theirs, their_op) != (Some(call), Some(op as u8)) {
                    return Err(Error::Cluster(format!(
                        "{} is not where this process is: call {} there, {op:?} {call} here; this is a bug",
                        self.spec.name(peer),
                        theirs.unwrap_or(0),
                    )));
                }
                return Ok(message.split_off(9));
            }
            self.check(&state)?;
            self.check_ended(&state, peer)?;
            state = self.wait(state, WATCH);
        }
    }

    fn begin_run(self: &Arc<Self>, workers: usize, memory: usize, job: &Arc<Job>) -> Result<Begun, Error> {
        let (index, count) = (self.spec.index, self.spec.hosts.len());
        let plane = {
            let mut state = self.lock();
            self.check(&state)?;
            if state.current.is_some() {
                return Err(Error::Cluster("a cluster runs one job at a time".into()));
            }
            state.runs += 1;
            let plane = Arc::new(Plane::new(state.runs, job.clone()));
            state.current = Some(plane.clone());
            state.data.clear();
            let message: Arc<[u8]> = numbers(&[plane.number, workers as u64, memory as u64]).into();
            for connection in state.peers.iter().filter_map(|peer| peer.connection.as_ref()) {
                connection.send(kind::RUN, message.clone());
            }
            plane
        };
        let run = plane.number;
        job.on_fail({
            let (shared, plane) = (self.clone(), plane.clone());
            move |error| shared.run_failed_here(&plane, error)
        });
        let outcome = self.join_run(&plane, workers, memory, job);
        let mut state = self.lock();
        state.begun.retain(|(begun, _), _| *begun > run);
        let session = state.session.unwrap_or_default();
        drop(state);
        let memory = outcome?;

        // The higher process connects to the lower one.
        let deadline = Instant::now() + DATA_WAIT;
        for peer in 0..index {
            let stream = loop {
                let dialled = self
                    .hello(Kind::Data, peer, session, run)
                    .and_then(|hello| dial(&self.spec.hosts[peer], hello, &self.key));
                match dialled {
                    Ok(stream) => break stream,
                    Err(_) if job.stopped() => return Err(Error::Cancelled),
                    Err(refusal) if Instant::now() >= deadline => {
                        return Err(Error::Lost {
                            process: peer,
                            address: self.spec.hosts[peer].clone(),
                            reason: format!("no connection for data could be made: {refusal}"),
                        });
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            };
            self.lock().data.insert(peer, stream);
        }
        let mut state = self.lock();
        while state.data.len() < count - 1 {
            self.check(&state)?;
            if Instant::now() >= deadline + HANDSHAKE_TIME {
                let missing = (0..count).find(|peer| *peer != index && !state.data.contains_key(peer));
                let process = missing.unwrap_or(0);
                return Err(Error::Lost {
                    process,
                    address: self.spec.hosts[process].clone(),
                    reason: "it made no connection for data".into(),
                });
            }
            drop(self.wait(state, WATCH));
            // Not under the lock: a cancelled job tells the others.
            if job.stopped() {
                return Err(Error::Cancelled);
            }
            state = self.lock();
        }
        let mut sockets = std::mem::take(&mut state.data);
        drop(state);
        let mut links = Vec::new();
        for peer in 0..count {
            links.push(match sockets.remove(&peer) {
                Some(stream) => Some(Link::new(stream, peer, plane.clone()).map_err(|error| {
                    Error::Cluster(format!("a connection for data cannot be used: {error}"))
                })?),
                None => None,
            });
        }
        Ok(Begun { plane, links, memory })
    }

    /// Waits until all processes have begun the run; gives the smallest budget.
    fn join_run(&self, plane: &Plane, workers: usize, memory: usize, job: &Job) -> Result<usize, Error> {
        let (index, run) = (self.spec.index, plane.number);
        let mut state = self.lock();
        loop {
            self.check(&state)?;
            if let Some(failure) = state.run_failures.remove(&run) {
                plane.told();
                return Err(self.error(&failure));
            }
            let mut waiting = None;
            let mut least = memory as u64;
            for peer in (0..state.peers.len()).filter(|peer| *peer != index) {
                match state.begun.get(&(run, peer)) {
                    Some((theirs, _)) if *theirs != workers as u64 => {
                        return Err(Error::Cluster(format!(
                            "{} has {theirs} worker threads and process {index} has {workers}; they have to be as many \
                             everywhere",
                            self.spec.name(peer)
                        )));
                    }
                    Some((_, theirs)) => least = least.min(*theirs),
                    None => waiting = Some(peer),
                }
            }
            let Some(peer) = waiting else {
                return Ok(least as usize);
            };
            self.check_ended(&state, peer)?;
            drop(self.wait(state, Duration::from_millis(50)));
            if job.stopped() {
                return Err(Error::Cancelled);
            }
            state = self.lock();
        }
    }

    /// Tells the others that the run has failed here; the job's first error.
    fn run_failed_here(&self, plane: &Plane, error: &Error) {
        if !plane.was_told() {
            let failure = match error {
                Error::Lost { process, reason, .. } => Failure {
                    origin: self.spec.index,
                    lost: Some(*process),
                    common: false,
                    text: reason.clone(),
                },
                error => Failure {
                    origin: self.spec.index,
                    lost: None,
                    common: matches!(error, Error::Cluster(_)),
                    text: chain(error),
                },
            };
            if let Ok(text) = serde_json::to_vec(&failure) {
                let mut message = plane.number.to_le_bytes().to_vec();
                message.extend(text);
                let message: Arc<[u8]> = message.into();
                let state = self.lock();
                for connection in state.peers.iter().filter_map(|peer| peer.connection.as_ref()) {
                    connection.send(kind::RUN_FAILED, message.clone());
                }
            }
        }
        plane.shut();
    }

    fn run_failed_elsewhere(&self, run: u64, failure: Failure) {
        let plane = {
            let mut state = self.lock();
            match &state.current {
                Some(plane) if plane.number == run => plane.clone(),
                _ => {
                    // Of a run that this process has yet to begin; what is over is over.
                    if run > state.runs {
                        state.run_failures.entry(run).or_insert(failure);
                    }
                    return;
                }
            }
        };
        plane.fail_from_cluster(self.error(&failure));
    }

    fn end_run(&self, plane: &Plane, job: &Job) {
        let (index, run) = (self.spec.index, plane.number);
        let mut state = self.lock();
        if !job.stopped_quietly() {
            let message: Arc<[u8]> = numbers(&[run]).into();
            for connection in state.peers.iter().filter_map(|peer| peer.connection.as_ref()) {
                connection.send(kind::RUN_DONE, message.clone());
            }
            while !job.stopped_quietly() {
                let waiting =
                    (0..state.peers.len()).find(|peer| *peer != index && !state.done.contains(&(run, *peer)));
                let Some(peer) = waiting else { break };
                if let Err(error) = self.check_ended(&state, peer) {
                    drop(state);
                    job.fail(error);
                    state = self.lock();
                    break;
                }
                state = self.wait(state, WATCH);
            }
        }
        state.current = None;
        state.done.retain(|(done, _)| *done > run);
        state.run_failures.retain(|failed, _| *failed > run);
        drop(state);
        plane.shut();
        job.forget_on_fail();
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
