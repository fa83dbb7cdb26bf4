//! The native half of the Python package `prep`: it converts, and holds no logic that Rust users lack.
//!
//! | file | what |
//! |---|---|
//! | `boundary.rs` | the one place where the interpreter lock is released, waits that notice Ctrl-C, panics, forks |
//! | `command.rs` | the command `prep` |
//! | `error.rs` | Rust errors as `prep.errors` |
//! | `arrays.rs` | batches as NumPy arrays without a copy |
//! | `record_files.rs` | records of ArrayRecord files by index |

#[allow(dead_code, reason = "used by the loader classes, which follow")]
mod arrays;
#[allow(dead_code, reason = "used by the loader classes, which follow")]
mod boundary;
mod command;
#[allow(dead_code, reason = "used by the loader classes, which follow")]
mod error;
mod hooks;
mod record_files;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::arrays::Buffer;
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::hooks::{_block, _panic};
    #[pymodule_export]
    use crate::record_files::RecordFiles;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
