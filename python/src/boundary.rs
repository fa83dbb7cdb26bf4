//! The one place where the interpreter lock is released, and where panics stop.
//!
//! Everything that may block goes through [`outside`] (short work), [`wait`] (work that comes in slices) or [`on_thread`] (work that
//! cannot be sliced). The last two look for Ctrl-C every [`TICK`].

use std::any::Any;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{IntoPython, Kind};

/// How long a wait lasts before it looks for signals: a Ctrl-C is noticed within this time, and 20 wake-ups a second cost nothing.
pub(crate) const TICK: Duration = Duration::from_millis(50);

thread_local! {
    /// Where the last panic of this thread was, while a guard is up.
    static PANIC_PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
    static GUARDS: RefCell<u32> = const { RefCell::new(0) };
}

/// Runs Rust code; a panic in it becomes `prep.errors.InternalError`.
pub(crate) fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    caught(work).unwrap_or_else(Err)
}

/// Releases the interpreter lock, runs `work`, and maps its error; a panic becomes `prep.errors.InternalError`.
///
/// `work` must be short (one positioned read, one slice of a wait), or Ctrl-C has to wait for it.
pub(crate) fn outside<T: Send, E: IntoPython + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    py.detach(|| caught(work))?.map_err(IntoPython::into_python)
}

/// Calls `step` until it has a value. Each call may block for up to the time it is given, which is [`TICK`].
///
/// # Errors
/// The error of `step`, or `KeyboardInterrupt` and what other signal handlers raise.
pub(crate) fn wait<T: Send, E: IntoPython + Send>(
    py: Python<'_>,
    mut step: impl FnMut(Duration) -> Result<Option<T>, E> + Send,
) -> PyResult<T> {
    loop {
        if let Some(value) = outside(py, || step(TICK))? {
            return Ok(value);
        }
        py.check_signals()?;
    }
}

/// Runs `work` on a thread of its own and waits for it. On a signal `cancel` is called; `finish` says whether the work is then
/// waited for (it holds something that must be put in order, and is quick to stop) or left to end by itself.
///
/// # Errors
/// The error of `work`, or what a signal handler raised.
pub(crate) fn on_thread<T: Send + 'static, E: IntoPython + Send + 'static>(
    py: Python<'_>,
    cancel: impl Fn(),
    finish: bool,
    mut tick: impl FnMut() -> PyResult<()>,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let receiver = std::sync::Mutex::new(receiver);
    let started = thread::Builder::new().name("prep-call".into()).spawn(move || {
        let _ = sender.send(caught(work));
    });
    let mut thread = match started {
        Ok(thread) => Some(thread),
        Err(error) => return Err(Kind::Storage.error(format!("could not start a thread: {error}"))),
    };
    let mut signal = None;
    loop {
        let received = outside(py, || {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Ok::<_, PyErr>(receiver.recv_timeout(TICK))
        })?;
        match received {
            Ok(result) => {
                // It has nothing left to do: once it is gone, the call leaves no thread behind.
                if let Some(thread) = thread.take() {
                    let _ = outside(py, || {
                        thread
                            .join()
                            .map_err(|_| Kind::Internal.error("a thread panicked at its end"))
                    });
                }
                let result = result?.map_err(IntoPython::into_python);
                return match signal {
                    Some(error) => Err(error),
                    None => result,
                };
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(
                    signal.unwrap_or_else(|| Kind::Internal.error("a thread ended without an answer"))
                );
            }
        }
        let tick = if signal.is_none() { tick() } else { Ok(()) };
        if let Err(error) = py.check_signals().and(tick) {
            // A second signal does not wait for order.
            if !finish || signal.is_some() {
                cancel();
                return Err(error);
            }
            cancel();
            signal = Some(error);
        }
    }
}

fn caught<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    install_hook();
    GUARDS.with_borrow_mut(|guards| *guards += 1);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDS.with_borrow_mut(|guards| *guards -= 1);
    result.map_err(|payload| {
        let place = PANIC_PLACE.take();
        Kind::Internal.error(report(&message(&*payload), place.as_deref()))
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// The text of an internal failure, with what to do about it.
pub(crate) fn report(message: &str, place: Option<&str>) -> String {
    format!(
        "internal failure: {message}{}; this is a bug of prep {}, not of your program: please report it with this message \
         and the call that led to it",
        place.map(|place| format!(" (at {place})")).unwrap_or_default(),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Panics under a guard are told by the exception, not on stderr. The hook is of this library's own copy of Rust's runtime.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if GUARDS.with_borrow(|guards| *guards == 0) {
                previous(info);
            } else {
                PANIC_PLACE.set(info.location().map(ToString::to_string));
            }
        }));
    });
}

/// A value with threads, locks or channels behind it, which belongs to the process that made it.
///
/// After a fork the child has a copy whose threads do not exist and whose locks may be held for ever: there it is leaked, never
/// dropped and never joined.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: std::process::id(),
            value: ManuallyDrop::new(value),
        }
    }

    /// The value, or `None` in any other process.
    pub(crate) fn get(&self) -> Option<&T> {
        (self.process == std::process::id()).then_some(&*self.value)
    }

    /// The value in whatever process: for fields that no lock guards and no thread changes.
    pub(crate) fn inherited(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the value is not used after this, which is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
