//! What each fuzz target does with its bytes. A parser may refuse them with an error; it must not panic, hang, or take memory in proportion
//! to a number that it merely read, and what it accepts must hold together: the same answer twice, a round trip where there is one.
//!
//! `fuzz/` drives these functions with libFuzzer; `tests/replay.rs` gives them the kept corpus.

mod array_record;
#[cfg(feature = "whole")]
mod documents;
mod examples;
mod raw;
mod schema;
mod tfrecord;
mod zeros;

pub use zeros::{pack, unpack};

/// A function that must survive any bytes.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("array_record", array_record::array_record),
    ("tfrecord", tfrecord::tfrecord),
    ("example", examples::example),
    ("columns", examples::columns),
    ("schema", schema::schema),
    ("png", raw::png),
    ("jpeg", raw::jpeg),
    ("raw", raw::raw),
    #[cfg(feature = "whole")]
    ("documents", documents::documents),
    #[cfg(feature = "whole")]
    ("texts", documents::texts),
    #[cfg(feature = "whole")]
    ("tar", documents::tar),
];

/// The byte that chooses, and a text.
fn text_of(bytes: &[u8]) -> Option<(u8, &str)> {
    let (&choice, rest) = bytes.split_first()?;
    Some((choice, std::str::from_utf8(rest).ok()?))
}

/// Runs the target called `name`.
///
/// # Panics
/// If there is no such target, and where the target finds a fault.
pub fn run(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, target) = found.expect("the name of a target");
    target(bytes);
}
