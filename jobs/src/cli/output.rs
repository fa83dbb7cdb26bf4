//! What all commands share about output: usage errors, the printed chain of causes, exit codes.

use std::io::{self, Write};

use crate::cli::Outcome;
#[allow(unused_imports, reason = "commands reach it from here")]
pub(crate) use crate::error::Hinted;

/// Wrong usage that only shows after parsing: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A job that failed, as a context of why: its causes are never about standard output.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct JobFailed(pub(crate) String);

/// A line for people, on standard error. If nobody listens there (`2>&1 | head`), nobody is told: `eprintln!` would panic.
pub(crate) fn say(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints an error with its causes and gives the exit code. A closed pipe on stdout is success.
pub(crate) fn finish(result: anyhow::Result<Outcome>) -> u8 {
    let error = match result {
        Ok(Outcome::Done) => return 0,
        Ok(Outcome::No) => return 1,
        Ok(Outcome::Skipped) => return 3,
        Ok(Outcome::Exit(code)) => return code,
        Err(error) => error,
    };
    // A job's own trouble with a connection is none of those who read our output.
    let closed_pipe = crate::error::find::<JobFailed>(&error).is_none()
        && error.chain().any(|cause| {
            cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        });
    if closed_pipe {
        return 0;
    }
    let mut text = format!("error: {error}\n");
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some libraries say the cause in the message above it already.
        if !last.contains(&cause) {
            text += &format!("  cause: {cause}\n");
            last = cause;
        }
    }
    if let Some(hinted) = crate::error::find::<Hinted>(&error) {
        text += &format!("hint: {}\n", hinted.hint);
    }
    let _ = io::stderr().write_all(text.as_bytes());
    if crate::error::find::<Usage>(&error).is_some() {
        2
    } else {
        1
    }
}
