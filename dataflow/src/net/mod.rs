//! Several processes as one: who they are, what they tell each other, and how records travel between them.
//!
//! Every process has one listener and, to each other process, one *control connection* that lives as long as the [`Cluster`]. Over it go
//! heartbeats, causes of failure, and the small values of [`broadcast`](Cluster::broadcast) and [`gather`](Cluster::gather). Each
//! [`run`](crate::run) opens fresh *data connections*, on which timely moves the records.
//!
//! A connection is worth nothing before both ends have shown that they know the secret (`handshake`): each connection that comes in is
//! looked at on a thread of its own, for three seconds and 112 bytes at most, so strangers are refused and do no harm. What is sent afterwards is
//! neither encrypted nor signed: in a network where others can read or change what passes, run the cluster inside a tunnel.
//!
//! | file | holds |
//! |---|---|
//! | `handshake.rs` | who is who: challenge, proof, settings; the sockets' options |
//! | `cluster.rs` | [`Cluster`]: control connections, heartbeats, collective calls, failure |
//! | `plane.rs` | one run's data connections, as timely takes them |

mod cluster;
mod handshake;
mod plane;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use cluster::Begun;
pub use cluster::Cluster;
pub(crate) use plane::Plane;
pub use spec::ClusterSpec;
