//! The command `prep`, for the wheel's console script.

use std::ffi::OsString;

use pyo3::prelude::*;

use crate::boundary::outside;

/// Runs the command of these arguments, the program's name first, and gives its exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    // What `prep launch` starts more processes with.
    let python: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let program = [python, "-m".into(), "prep".into()];
    outside(py, || Ok::<_, PyErr>(prep_jobs::cli::run(&program, arguments)))
}
