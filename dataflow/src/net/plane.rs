//! One run's data connections, as timely takes them.
//!
//! timely's threads panic where a connection breaks. Here they never see that: a [`Link`] that breaks tells the run, takes what is still
//! written to it without sending it, and, when the workers have gone, ends what is read from it in good order.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use timely::communication::allocator::zero_copy::stream::Stream;

use crate::Error;
use crate::job::{Job, lock};

/// Bytes of the header before each of timely's messages: six numbers. Source: timely_communication 0.32, networking.rs.
const HEADER_BYTES: usize = 48;
/// Where in the header the length of the message stands, big-endian.
const LENGTH_AT: usize = 32;

/// One run, as the cluster and the run's connections see it.
pub(crate) struct Plane {
    pub(crate) number: u64,
    pub(crate) job: Arc<Job>,
    /// Whether the failure came from the cluster, so that the others know of it.
    told: AtomicBool,
    shut: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    /// The first connection that broke: when, and how.
    broken: Mutex<Option<(usize, Instant, String)>>,
    workers_gone: Mutex<bool>,
    changed: Condvar,
}

impl Plane {
    pub(crate) fn new(number: u64, job: Arc<Job>) -> Self {
        Self {
            number,
            job,
            told: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            sockets: Mutex::default(),
            broken: Mutex::default(),
            workers_gone: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn told(&self) {
        self.told.store(true, SeqCst);
    }

    pub(crate) fn was_told(&self) -> bool {
        self.told.load(SeqCst)
    }

    /// Ends the run with a cause that the others know.
    pub(crate) fn fail_from_cluster(&self, error: Error) {
        self.told();
        self.job.fail(error);
    }

    /// Closes all connections: nothing more is sent or received.
    pub(crate) fn shut(&self) {
        self.shut.store(true, SeqCst);
        for socket in lock(&self.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Says that the workers have gone, and lets the threads of broken connections end.
    pub(crate) fn workers_gone(&self) {
        *lock(&self.workers_gone) = true;
        self.changed.notify_all();
    }

    fn wait_for_workers_to_go(&self) {
        let mut gone = lock(&self.workers_gone);
        while !*gone {
            gone = self.changed.wait(gone).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn broke(&self, process: usize, reason: String) {
        if !self.shut.load(SeqCst) {
            lock(&self.broken).get_or_insert((process, Instant::now(), reason));
        }
    }

    /// The process whose connection broke so long ago that nobody will say why.
    pub(crate) fn lost(&self, grace: Duration) -> Option<(usize, String)> {
        let broken = lock(&self.broken);
        let (process, since, reason) = broken.as_ref()?;
        (since.elapsed() >= grace && !self.shut.load(SeqCst)).then(|| (*process, reason.clone()))
    }
}

/// A data connection.
pub(crate) struct Link {
    stream: TcpStream,
    process: usize,
    plane: Arc<Plane>,
    framing: Framing,
    /// Whether it broke while something was read or written.
    dead: bool,
}

impl Link {
    pub(crate) fn new(stream: TcpStream, process: usize, plane: Arc<Plane>) -> io::Result<Self> {
        lock(&plane.sockets).push(stream.try_clone()?);
        if plane.shut.load(SeqCst) {
            plane.shut();
        }
        Ok(Self {
            stream,
            process,
            plane,
            framing: Framing::default(),
            dead: false,
        })
    }

    fn broke(&mut self, reason: String) {
        self.dead = true;
        self.plane.broke(self.process, reason);
    }

    /// Ends what is being read: the message that is under way is filled up, and the end is announced.
    fn wind_up(&mut self, bytes: &mut [u8]) -> usize {
        if self.framing.ended {
            return 0;
        }
        let count = self.framing.until_border().min(bytes.len());
        bytes[..count].fill(0);
        self.framing.advance(&bytes[..count]);
        count
    }
}

impl Read for Link {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.dead {
            let reason = match self.stream.read(bytes) {
                Ok(0) => "it closed a connection for data".to_owned(),
                Ok(count) => {
                    self.framing.advance(&bytes[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => format!("a connection for data broke: {error}"),
            };
            if self.framing.ended {
                return Ok(0);
            }
            self.broke(reason);
        }
        // No worker must see the made-up rest of a message.
        self.plane.wait_for_workers_to_go();
        Ok(self.wind_up(bytes))
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.dead || self.plane.shut.load(SeqCst) {
            return Ok(bytes.len());
        }
        match self.stream.write(bytes) {
            Ok(count) if count > 0 || bytes.is_empty() => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Ok(_) => {
                self.broke("a connection for data takes nothing more".into());
                Ok(bytes.len())
            }
            Err(error) => {
                self.broke(format!("a connection for data broke: {error}"));
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Link {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            stream: self.stream.try_clone()?,
            process: self.process,
            plane: self.plane.clone(),
            framing: self.framing.clone(),
            dead: self.dead,
        })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        // Of a connection that has gone already there is nothing to shut.
        let _ = self.stream.shutdown(how);
        Ok(())
    }
}

/// Where in timely's sequence of headers and messages a connection is.
#[derive(Clone)]
struct Framing {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the message that are still to come.
    left: usize,
    /// Whether the empty message has come that announces the end.
    ended: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            left: 0,
            ended: false,
        }
    }
}

impl Framing {
    fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.ended {
            if self.left > 0 {
                let count = self.left.min(bytes.len());
                self.left -= count;
                bytes = &bytes[count..];
                continue;
            }
            let count = (HEADER_BYTES - self.header_bytes).min(bytes.len());
            self.header[self.header_bytes..][..count].copy_from_slice(&bytes[..count]);
            self.header_bytes += count;
            bytes = &bytes[count..];
            if self.header_bytes == HEADER_BYTES {
                self.header_bytes = 0;
                let mut length = [0; 8];
                length.copy_from_slice(&self.header[LENGTH_AT..LENGTH_AT + 8]);
                self.left = u64::from_be_bytes(length) as usize;
                self.ended = self.left == 0;
            }
        }
    }

    /// Bytes up to the end of the header or message that is under way.
    fn until_border(&self) -> usize {
        if self.left > 0 {
            self.left
        } else {
            HEADER_BYTES - self.header_bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use timely::communication::networking::MessageHeader;

    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let header = MessageHeader {
            channel: 1,
            source: 2,
            target_lower: 3,
            target_upper: 4,
            length,
            seqno: 5,
        };
        let mut bytes = Vec::new();
        header.write_to(&mut bytes).unwrap();
        bytes.extend(vec![7; length]);
        bytes
    }

    #[test]
    fn a_cut_anywhere_is_wound_up_as_timely_expects_it() {
        let mut sent = message(5);
        sent.extend(message(100));
        for cut in 0..=sent.len() {
            for step in [1, 7, 1000] {
                let mut framing = Framing::default();
                for part in sent[..cut].chunks(step) {
                    framing.advance(part);
                }
                let mut received = sent[..cut].to_vec();
                while !framing.ended {
                    let zeros = vec![0; framing.until_border().min(step)];
                    framing.advance(&zeros);
                    received.extend(zeros);
                }
                // Whole messages, and then one that is empty, as the receiving thread reads them.
                let mut rest = &received[..];
                loop {
                    let header = MessageHeader::try_read(rest).expect("a whole message");
                    rest = &rest[header.required_bytes()..];
                    if header.length == 0 {
                        break;
                    }
                }
                assert!(rest.is_empty(), "cut {cut}, step {step}");
            }
        }
    }
}
