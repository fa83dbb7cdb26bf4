//! Rust errors as exceptions of `prep.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::boundary;
use crate::functions::Raised;

/// The exceptions of `prep/errors.py`, one per thing a caller would catch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    NotFound,
    Invalid,
    Damaged,
    Unsupported,
    Storage,
    OutOfRange,
    State,
    Conflict,
    Build,
    Closed,
    Internal,
}

impl Kind {
    fn class(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 11] = [const { PyOnceLock::new() }; 11];
        let name = match self {
            Self::NotFound => "NotFoundError",
            Self::Invalid => "InvalidError",
            Self::Damaged => "DamagedError",
            Self::Unsupported => "UnsupportedError",
            Self::Storage => "StorageError",
            Self::OutOfRange => "OutOfRangeError",
            Self::State => "StateError",
            Self::Conflict => "ConflictError",
            Self::Build => "BuildError",
            Self::Closed => "ClosedError",
            Self::Internal => "InternalError",
        };
        CLASSES[self as usize]
            .import(py, "prep.errors", name)
            .map(|class| class.clone().into_any())
    }

    /// The exception of this kind.
    pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(
            |py| match self.class(py).and_then(|class| class.call1((message,))) {
                Ok(instance) => PyErr::from_value(instance),
                Err(error) => error,
            },
        )
    }
}

/// What a Rust error becomes. Implemented for every error that crosses the boundary.
pub(crate) trait IntoPython {
    /// The exception's kind and text, causes included.
    fn into_python(self) -> PyErr;
}

impl IntoPython for PyErr {
    fn into_python(self) -> PyErr {
        self
    }
}

impl IntoPython for prep_formats::Error {
    fn into_python(self) -> PyErr {
        kind_of_format(&self).error(chain(&self))
    }
}

pub(crate) fn kind_of_format(error: &prep_formats::Error) -> Kind {
    use prep_formats::Error;
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Kind::NotFound,
        Error::Io { .. } => Kind::Storage,
        Error::Damaged { .. } => Kind::Damaged,
        Error::Unsupported { .. } => Kind::Unsupported,
        Error::Invalid(_) => Kind::Invalid,
        _ => Kind::Storage,
    }
}

impl IntoPython for prep_catalog::Error {
    fn into_python(self) -> PyErr {
        with_hint(kind_of_catalog(&self), chain(&self), self.hint())
    }
}

pub(crate) fn kind_of_catalog(error: &prep_catalog::Error) -> Kind {
    use prep_catalog::Error;
    match error {
        Error::Format(error) => kind_of_format(error),
        Error::Name { .. } | Error::Refused(_) => Kind::Invalid,
        Error::UnknownDataset { .. } | Error::UnknownConfig { .. } | Error::UnknownVersion { .. } => {
            Kind::NotFound
        }
        Error::DamagedEntry { .. } | Error::Manifest { .. } | Error::Data { .. } => Kind::Damaged,
        Error::TooNew { .. } => Kind::Unsupported,
        Error::Conflict { .. } | Error::Contended { .. } => Kind::Conflict,
        _ => Kind::Storage,
    }
}

impl IntoPython for prep_loader::Error {
    fn into_python(self) -> PyErr {
        use prep_loader::Error;
        if let Error::Catalog(error) = self {
            return error.into_python();
        }
        if let Some(raised) = raised(&self) {
            // The exception of a function of Python's, as it is.
            return Python::attach(|py| raised.with_note(py, &format!("in a pipeline: {}", place(&self))));
        }
        let kind = match innermost(&self) {
            Error::Options(_) | Error::Element(_) | Error::Split { .. } => Kind::Invalid,
            Error::State(_) | Error::Conflict(_) => Kind::State,
            Error::OutOfRange { .. } => Kind::OutOfRange,
            Error::Changed { .. } => Kind::Damaged,
            Error::Record { source, .. } => kind_of_format(source),
            Error::Format(error) => kind_of_format(error),
            Error::Panic { .. } => return Kind::Internal.error(boundary::report(&self.to_string(), None)),
            _ => Kind::Storage,
        };
        kind.error(chain(&self))
    }
}

/// The cause of an error of a stage.
fn innermost(mut error: &prep_loader::Error) -> &prep_loader::Error {
    while let prep_loader::Error::Stage { source, .. } = error {
        error = source;
    }
    error
}

fn raised(error: &prep_loader::Error) -> Option<&Raised> {
    match innermost(error) {
        prep_loader::Error::User(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Where an exception was raised: the text of the error without that of its causes.
fn place(error: &prep_loader::Error) -> String {
    match error {
        prep_loader::Error::Stage { .. } => error.to_string(),
        _ => "a function failed".into(),
    }
}

/// An error of the given kind, with what to do about it after the text.
pub(crate) fn with_hint(kind: Kind, mut text: String, hint: Option<String>) -> PyErr {
    if let Some(hint) = hint {
        text += "; ";
        text += &hint;
    }
    kind.error(text)
}

/// An error and its causes on one line, separated by colons; a cause that its parent has said already is not repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text += ": ";
            text += &said;
        }
        next = cause.source();
    }
    text
}
