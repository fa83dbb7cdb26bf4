//! Ctrl-C and requests to end: a switch that commands look at, a deadline, and the command line to give again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::monitor::Monitor;

/// How long a stopped job may take to end in order. Machines that are taken away give 30 s as a rule, and we promise 10.
const GRACE: Duration = Duration::from_secs(8);
/// The same where another process has failed: until that is noticed, most of the ten seconds may have gone.
const GRACE_IN_VAIN: Duration = Duration::from_secs(2);

/// Sets `stop` on Ctrl-C, on a request to end, and when the terminal goes away; a second one ends the process.
pub(crate) fn on_signals(stop: &Arc<AtomicBool>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // `nohup` wants the end of the terminal to mean nothing.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        // Registered first, so that it sees the switch as it was before this signal.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::<AtomicBool>::clone(stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .context("could not listen for signals")?;
    }
    Ok(())
}

/// Whether this process was started with a signal ignored, where the system tells.
pub(crate) fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Ends the process when a job that was stopped does not end in order in time, as it may be blocked in the system: in a sync to a
/// slow disk, in a name that is not found. Nothing is lost by that: what is finished is journaled.
#[derive(Debug)]
pub(crate) struct Deadline {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Deadline {
    /// Watches the job until dropped. `last_words` is called before the process ends.
    pub(crate) fn start(monitor: Arc<Monitor>, last_words: impl FnOnce() + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let watch = move || {
            let mut stopped: Option<Instant> = None;
            while !ended.load(Ordering::Acquire) {
                if monitor.is_cancelled() {
                    let since = *stopped.get_or_insert_with(Instant::now);
                    let grace = monitor.cause().map_or(GRACE, |_| GRACE_IN_VAIN);
                    if since.elapsed() >= grace {
                        last_words();
                        std::process::exit(1);
                    }
                }
                std::thread::park_timeout(Duration::from_millis(100));
            }
        };
        let thread = std::thread::Builder::new()
            .name("deadline".to_owned())
            .spawn(watch)
            .ok();
        Self { over, thread }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The command line of this process, for a shell.
pub(crate) fn command_line() -> String {
    // `args` would panic where a path is not UTF-8.
    let words: Vec<String> = std::env::args_os()
        .map(|word| quote(&word.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// A word of a command line, so that a shell reads it as one.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Passes writes on until the switch is set; then they fail.
#[derive(Debug)]
pub(crate) struct StoppingWriter<W> {
    /// Where the bytes go.
    pub(crate) inner: W,
    /// The switch.
    pub(crate) stop: Arc<AtomicBool>,
}

impl<W: Write> Write for StoppingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other(crate::error::Cancelled));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_their_mask() {
        let status = "Name:\tprep\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert!(ignores(status, 1) && ignores(status, 13));
        assert!(!ignores(status, 2) && !ignores("", 1));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quote("--from=/a/b.gz"), "--from=/a/b.gz");
        assert_eq!(quote("my data"), "'my data'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn a_stopped_writer_takes_no_more() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writer = StoppingWriter {
            inner: Vec::new(),
            stop: Arc::clone(&stop),
        };
        writer.write_all(b"one").unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(writer.write_all(b"two").is_err());
        assert_eq!(writer.inner, b"one");
    }
}
