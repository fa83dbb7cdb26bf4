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

/// Wrong usage that only shows after the arguments were parsed: exit code 2. Its words are about flags of the command.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub(crate) String);

impl Usage {
    /// Makes wrong usage of an error, which keeps its words, causes and advice.
    pub(crate) fn of(error: anyhow::Error) -> anyhow::Error {
        let text = error.to_string();
        error.context(Self(text))
    }
}

/// Another process has made the version that was to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another process has made that version meanwhile")]
pub(crate) struct Overtaken;

/// The folder of the version that was to be made is there, and no entry of the log: another job has left it, which was killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the folder of version {0} is there already, and the catalog has no such version")]
pub(crate) struct Occupied(pub(crate) String);

/// The job was asked to stop, and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before the end, as asked")]
pub struct Cancelled;

/// The first error of this type among an error, its contexts and its causes.
pub fn find<T: std::error::Error + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&T> {
    // The chain shows contexts as they print, not as what they are.
    error
        .downcast_ref()
        .or_else(|| error.chain().find_map(|cause| cause.downcast_ref()))
}

/// An error on its way through a graph, which takes any error, so that it comes out as it went in.
#[derive(Debug)]
pub(crate) struct Carried(pub(crate) anyhow::Error);

impl Carried {
    pub(crate) fn boxed(error: anyhow::Error) -> prep_dataflow::BoxError {
        Box::new(Self(error))
    }
}

impl std::fmt::Display for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Carried {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_as_contexts_and_as_causes() {
        let error = anyhow::anyhow!("inside")
            .context(Hinted::new("message", "hint"))
            .context("outside");
        assert_eq!(find::<Hinted>(&error).unwrap().hint, "hint");
        let error = anyhow::Error::new(Cancelled).context("outside");
        assert!(find::<Cancelled>(&error).is_some());
        assert!(find::<Hinted>(&error).is_none());
    }
}
