//! Hidden functions for the tests of this package: what an ordinary call cannot bring about.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::boundary::{on_thread, outside, wait};

/// Panics behind the boundary; with `on_a_thread`, on a thread of a long call.
#[pyfunction]
pub(crate) fn _panic(py: Python<'_>, message: String, on_a_thread: bool) -> PyResult<()> {
    let panic = move || -> Result<(), PyErr> { panic!("{message}") };
    if on_a_thread {
        on_thread(py, || {}, false, || Ok(()), panic)
    } else {
        outside(py, panic)
    }
}

/// Blocks as a read of a dead file server does: in slices, or (`on_a_thread`) in one piece.
#[pyfunction]
pub(crate) fn _block(py: Python<'_>, seconds: f64, on_a_thread: bool) -> PyResult<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    if on_a_thread {
        let sleep = move || {
            thread::sleep(end.saturating_duration_since(Instant::now()));
            Ok::<_, PyErr>(())
        };
        return on_thread(py, || {}, false, || Ok(()), sleep);
    }
    wait(py, |tick| {
        thread::sleep(tick);
        Ok::<_, PyErr>((Instant::now() >= end).then_some(()))
    })
}
