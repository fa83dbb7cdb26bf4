//! What all commands share about output: usage errors, the printed chain of causes, exit codes.

use std::io::{self, Write};

use crate::cli::Outcome;
#[allow(unused_imports, reason = "commands reach them from here")]
pub(crate) use crate::error::{Hinted, Usage};

/// A job that failed, as a context of why: its causes are never about standard output.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct JobFailed(pub(crate) String);

/// A line for people, on standard error. If nobody listens there (`2>&1 | head`), nobody is told: `eprintln!` would panic.
pub(crate) fn say(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", without_passwords(&text.to_string()));
}

/// A message without the web page that a server answered with, which says nothing more to people here.
fn without_page(mut message: String) -> String {
    let lower = message.to_ascii_lowercase();
    let page = ["<!doctype html", "<html"]
        .iter()
        .filter_map(|start| lower.find(start))
        .min();
    if let Some(page) = page {
        message.truncate(page);
        message.truncate(message.trim_end_matches([' ', ':', '\n']).len());
    }
    message
}

/// A text in which no address shows a password: `http://name:password@host` becomes `http://name:***@host`.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || "/?#`'\"".contains(c))
            .unwrap_or(after.len());
        rest = after;
        if let Some(host) = after[..end].rfind('@')
            && let Some(colon) = after[..host].find(':')
        {
            shown.push_str(&after[..=colon]);
            shown.push_str("***");
            rest = &after[host..];
        }
    }
    shown + rest
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
    let first = without_page(error.to_string());
    let mut text = format!("error: {first}\n");
    let mut last = first;
    for cause in error.chain().skip(1) {
        let cause = without_page(cause.to_string());
        // Some libraries say the cause in the message above it already.
        if !last.contains(&cause) {
            text += &format!("  cause: {cause}\n");
            last = cause;
        }
    }
    if let Some(hinted) = crate::error::find::<Hinted>(&error) {
        text += &format!("hint: {}\n", hinted.hint);
    }
    let _ = io::stderr().write_all(without_passwords(&text).as_bytes());
    if crate::error::find::<Usage>(&error).is_some() {
        2
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        for (text, shown) in [
            (
                "could not open http://me:secret@host:80/a@b:c",
                "could not open http://me:***@host:80/a@b:c",
            ),
            (
                "`s3://k:p@ss@bucket/x` and https://u:p@h",
                "`s3://k:***@bucket/x` and https://u:***@h",
            ),
            (
                "http://host:80/x, http://me@host/x and a://",
                "http://host:80/x, http://me@host/x and a://",
            ),
            ("nothing: here@all", "nothing: here@all"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }

    #[test]
    fn web_pages_are_not_shown() {
        let message = "404 Not Found: <!DOCTYPE HTML>\n<html lang=\"en\">\n".to_owned();
        assert_eq!(without_page(message), "404 Not Found");
        assert_eq!(without_page("as it is:".to_owned()), "as it is:");
    }
}
