//! Ctrl-C: a switch that commands look at, and the command line to give again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Sets `stop` on Ctrl-C and on a request to end; a second one ends the process.
pub(crate) fn on_signals(stop: &Arc<AtomicBool>) -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};

    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it sees the switch as it was before this signal.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::<AtomicBool>::clone(stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .context("could not listen for signals")?;
    }
    Ok(())
}

/// The command line of this process, for a shell.
pub(crate) fn command_line() -> String {
    let words: Vec<String> = std::env::args().map(|word| quote(&word)).collect();
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
