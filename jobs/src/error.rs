//! Errors that jobs share.

/// An error with advice: the command prints the advice as a `hint:` line after the causes.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Hinted {
    /// What went wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Hinted {
    /// An error with this message and advice.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// The job was asked to stop, and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before the end, as asked")]
pub struct Cancelled;
