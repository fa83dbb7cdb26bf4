//! Who is at the other end of a connection.
//!
//! ```text
//! dialler                                              listener
//! hello: magic, kind, from, to, session, run, nonce -->
//!        <-- challenge: magic, nonce, MAC over (hello, nonce)
//! proof: MAC over (hello, nonce) ---------------------->
//!        <-- verdict
//! ```
//!
//! MACs are BLAKE3, keyed with a key derived from the shared secret, over messages with a label for each direction: neither a replay nor a
//! reflection of what was sent elsewhere is of use to anybody. The listener learns nothing it could use before the dialler has its proof, and the
//! other way round.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

/// First bytes of a hello and of a challenge; the last byte is the protocol's version.
const HELLO_MAGIC: [u8; 8] = *b"prepnet\x01";
const CHALLENGE_MAGIC: [u8; 8] = *b"prepack\x01";

pub(crate) const HELLO_BYTES: usize = 80;
const CHALLENGE_BYTES: usize = 72;

/// How long a handshake may take. Numbers of ours: a round trip takes well below a second anywhere.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(3);
/// How long the system may take to notice that nothing is acknowledged any more.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Control,
    /// Records of one run.
    Data,
}

/// The first message of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: Kind,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Chosen by process 0 when all have met; zeros before.
    pub(crate) session: [u8; 16],
    /// Which run the data are of; 0 for control connections.
    pub(crate) run: u64,
    pub(crate) nonce: [u8; 32],
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8] = u8::from(self.kind == Kind::Data);
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.to.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.session);
        bytes[40..48].copy_from_slice(&self.run.to_le_bytes());
        bytes[48..].copy_from_slice(&self.nonce);
        bytes
    }

    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Refusal> {
        let (magic, rest) = bytes.split_at(8);
        check_magic(magic, &HELLO_MAGIC)?;
        let kind = match rest[0] {
            0 => Kind::Control,
            1 => Kind::Data,
            _ => return Err(Refusal::NotOurs),
        };
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut hello = Self {
            kind,
            from: number(16),
            to: number(20),
            session: [0; 16],
            run: u64::from(number(40)) | u64::from(number(44)) << 32,
            nonce: [0; 32],
        };
        hello.session.copy_from_slice(&bytes[24..40]);
        hello.nonce.copy_from_slice(&bytes[48..]);
        Ok(hello)
    }
}

fn check_magic(found: &[u8], wanted: &[u8; 8]) -> Result<(), Refusal> {
    if found == wanted {
        return Ok(());
    }
    Err(if found[..7] == wanted[..7] {
        Refusal::Protocol(found[7])
    } else {
        Refusal::NotOurs
    })
}

/// Why a connection is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("what came is not from a process of prep")]
    NotOurs,
    #[error("it speaks version {0} of the protocol, and this program version {own}", own = HELLO_MAGIC[7])]
    Protocol(u8),
    #[error("it has another secret")]
    Secret,
    #[error("it said nothing for {} seconds", HANDSHAKE_TIME.as_secs())]
    Silent,
    #[error("it closed the connection")]
    Closed,
    #[error("it is busy with another run, or has this process already")]
    Busy,
    #[error("it wanted process {0}")]
    Misdirected(u32),
    #[error("it is in no state to take a connection of this kind")]
    Unexpected,
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            WouldBlock | TimedOut => Self::Silent,
            UnexpectedEof | ConnectionReset | BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// The listener's last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verdict {
    Welcome = 0,
    Busy = 1,
    Misdirected = 2,
    Unexpected = 3,
}

/// The key of all MACs.
#[derive(Clone)]
pub(crate) struct AuthKey([u8; 32]);

impl AuthKey {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("prep 2026-11-30 cluster peers", secret))
    }

    fn mac(&self, label: &[u8; 4], hello: &[u8; HELLO_BYTES], nonce: &[u8; 32]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label).update(hello).update(nonce);
        hasher.finalize()
    }
}

/// Unpredictable bytes.
///
/// # Errors
///
/// The system gives none.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Reads exactly so many bytes before the deadline.
pub(crate) fn read_before(mut stream: &TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects to an address and shows who we are. Gives the connection once the other end is known and agrees.
pub(crate) fn dial(address: &str, hello: Hello, key: &AuthKey) -> Result<TcpStream, Refusal> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs().map_err(Refusal::Io)? {
        match TcpStream::connect_timeout(&address, HANDSHAKE_TIME) {
            // A port that nobody listens on can be connected to itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return introduce(stream, hello, key),
            Err(error) => last = error,
        }
    }
    Err(Refusal::Io(last))
}

fn introduce(stream: TcpStream, hello: Hello, key: &AuthKey) -> Result<TcpStream, Refusal> {
    tune(&stream)?;
    let deadline = Instant::now() + HANDSHAKE_TIME;
    stream.set_write_timeout(Some(HANDSHAKE_TIME))?;
    let hello = hello.to_bytes();
    (&stream).write_all(&hello)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    read_before(&stream, &mut challenge[..8], deadline)?;
    check_magic(&challenge[..8], &CHALLENGE_MAGIC)?;
    read_before(&stream, &mut challenge[8..], deadline)?;
    let (mut nonce, mut mac) = ([0; 32], [0; 32]);
    nonce.copy_from_slice(&challenge[8..40]);
    mac.copy_from_slice(&challenge[40..]);
    // Comparing hashes takes the same time whatever they are.
    if key.mac(b"list", &hello, &nonce) != blake3::Hash::from_bytes(mac) {
        return Err(Refusal::Secret);
    }
    (&stream).write_all(key.mac(b"dial", &hello, &nonce).as_bytes())?;
    let mut verdict = [0];
    read_before(&stream, &mut verdict, deadline)?;
    match verdict[0] {
        0 => {}
        1 => return Err(Refusal::Busy),
        2 => {
            return Err(Refusal::Misdirected(u32::from_le_bytes([
                hello[20], hello[21], hello[22], hello[23],
            ])));
        }
        _ => return Err(Refusal::Unexpected),
    }
    calm(&stream)?;
    Ok(stream)
}

/// Finds out who has connected. Gives what they want; [`answer`] has to follow.
pub(crate) fn receive(stream: &TcpStream, key: &AuthKey) -> Result<Hello, Refusal> {
    tune(stream)?;
    let deadline = Instant::now() + HANDSHAKE_TIME;
    stream.set_write_timeout(Some(HANDSHAKE_TIME))?;
    let mut bytes = [0; HELLO_BYTES];
    // Who speaks another language is not waited for.
    read_before(stream, &mut bytes[..8], deadline)?;
    check_magic(&bytes[..8], &HELLO_MAGIC)?;
    read_before(stream, &mut bytes[8..], deadline)?;
    let hello = Hello::from_bytes(&bytes)?;
    let nonce = random()?;
    let mut challenge = [0; CHALLENGE_BYTES];
    challenge[..8].copy_from_slice(&CHALLENGE_MAGIC);
    challenge[8..40].copy_from_slice(&nonce);
    challenge[40..].copy_from_slice(key.mac(b"list", &bytes, &nonce).as_bytes());
    let mut writer = stream;
    writer.write_all(&challenge)?;
    let mut proof = [0; 32];
    match read_before(stream, &mut proof, deadline) {
        // Who sees that our secret is another one leaves at this point.
        Err(error) if Refusal::from(io::Error::from(error.kind())).is_closed() => {
            return Err(Refusal::Secret);
        }
        result => result?,
    }
    if key.mac(b"dial", &bytes, &nonce) != blake3::Hash::from_bytes(proof) {
        return Err(Refusal::Secret);
    }
    Ok(hello)
}

impl Refusal {
    fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

/// Says whether a connection is wanted.
pub(crate) fn answer(mut stream: &TcpStream, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&[verdict as u8])?;
    calm(stream)
}

/// Takes the time limits of the handshake away.
fn calm(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)
}

/// Small messages leave at once, and a peer that is gone is noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

/// Where the listener of a process can be bound, best first: its own address, or all addresses where that one is unknown here (behind a
/// translated address, or before a name is published).
pub(crate) fn listen_addresses(host: &str) -> Vec<SocketAddr> {
    let port = host
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok())
        .unwrap_or(0);
    let mut addresses: Vec<SocketAddr> = host.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    addresses.push(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port)));
    addresses.push(SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, port)));
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire() {
        let hello = Hello {
            kind: Kind::Data,
            from: 3,
            to: 70_000,
            session: [9; 16],
            run: 1 << 40,
            nonce: random().unwrap(),
        };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()).unwrap(), hello);
    }

    #[test]
    fn macs_differ_by_direction_secret_and_content() {
        let (key, hello, nonce) = (AuthKey::new(b"a"), [7; HELLO_BYTES], [1; 32]);
        let mac = key.mac(b"dial", &hello, &nonce);
        assert_ne!(mac, key.mac(b"list", &hello, &nonce));
        assert_ne!(mac, AuthKey::new(b"b").mac(b"dial", &hello, &nonce));
        assert_ne!(mac, key.mac(b"dial", &[8; HELLO_BYTES], &nonce));
        assert_ne!(mac, key.mac(b"dial", &hello, &[2; 32]));
    }
}
