//! Faults at known places of a job, for tests of whole processes: as `PREP_TEST_FAULT` asks.
//!
//! | value | what happens |
//! |---|---|
//! | `panic@PLACE:N` | the thread that passes the place for the `N`th time panics |
//! | `hold@PLACE:N:FILE` | that thread makes the file, and all threads that pass from then on wait for as long as it is there |
//!
//! Places are `encode` and `write` (an example of a build), `bring` (a shard that is taken over), `publish` (all shards are there), `commit` (the folder is in
//! its place), `convert` (a block of a conversion in source order), `read` (a record of another one) and `export` (a record of an export). So a
//! test can strike while records flow, and need not guess when that is. Without the variable a pass costs one load.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const VARIABLE: &str = "PREP_TEST_FAULT";

static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

#[derive(Debug)]
struct Fault {
    place: String,
    at: u64,
    /// What to wait for; without it, the fault is a panic.
    hold: Option<PathBuf>,
    passes: AtomicU64,
}

/// A thread passes a place.
///
/// # Panics
/// If a test asked for it.
pub(crate) fn pass(place: &str) {
    let fault = FAULT.get_or_init(|| std::env::var(VARIABLE).ok().and_then(|text| Fault::parse(&text)));
    if let Some(fault) = fault {
        fault.strike(place);
    }
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let (action, rest) = text.split_once('@')?;
        let mut parts = rest.splitn(3, ':');
        let (place, at) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
        let hold = match (action, parts.next()) {
            ("panic", None) => None,
            ("hold", Some(file)) => Some(file.into()),
            _ => return None,
        };
        let passes = AtomicU64::new(0);
        Some(Self {
            place,
            at,
            hold,
            passes,
        })
    }

    fn strike(&self, place: &str) {
        if place != self.place {
            return;
        }
        let pass = self.passes.fetch_add(1, Ordering::SeqCst) + 1;
        let Some(file) = &self.hold else {
            assert!(pass != self.at, "a test asked for a panic here");
            return;
        };
        if pass == self.at {
            // Whoever waits for the file waits in vain if it cannot be made.
            let _ = std::fs::write(file, "");
        }
        while pass >= self.at && file.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_strike_where_they_say() {
        for bad in [
            "",
            "panic",
            "panic@a",
            "panic@a:x",
            "panic@a:1:f",
            "hold@a:1",
            "go@a:1",
        ] {
            assert!(Fault::parse(bad).is_none(), "{bad}");
        }
        let fault = Fault::parse("panic@encode:2").unwrap();
        fault.strike("encode");
        fault.strike("read");
        assert!(std::panic::catch_unwind(|| fault.strike("encode")).is_err());
        fault.strike("encode");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a:b");
        let fault = Fault::parse(&format!("hold@read:1:{}", file.display())).unwrap();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| fault.strike("read"));
            while !file.exists() {
                std::thread::yield_now();
            }
            assert!(!held.is_finished());
            std::fs::remove_file(&file).unwrap();
        });
    }
}
