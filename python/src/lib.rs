//! The native half of the Python package `prep`: it converts, and holds no logic that Rust users lack.
//!
//! | file | what |
//! |---|---|
//! | `boundary.rs` | the one place where the interpreter lock is released, waits that notice Ctrl-C, panics, forks |
//! | `command.rs` | the command `prep` |
//! | `error.rs` | Rust errors as `prep.errors` |
//! | `arrays.rs` | batches as NumPy arrays without a copy |
//! | `dataset.rs`, `loader.rs` | random access and batches of a dataset |
//! | `stages.rs`, `stream.rs` | pipelines and their streams |
//! | `functions.rs`, `values.rs` | functions of Python's in pipelines, and the elements that they see |
//! | `transforms.rs` | transforms of Rust's by name |
//! | `examples.rs` | records that come from elsewhere |
//! | `record_files.rs` | records of ArrayRecord files by index |
//! | `registry.rs` | what the catalog has, builds of recipes, conversions |
//! | `writing.rs`, `cells.rs` | builds of examples that Python code gives |

mod arrays;
mod boundary;
mod cells;
mod command;
mod dataset;
mod error;
mod examples;
mod functions;
mod hooks;
mod loader;
mod record_files;
mod registry;
mod stages;
mod stream;
mod transforms;
mod values;
mod writing;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::arrays::Buffer;
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::dataset::{Dataset, load, open};
    #[pymodule_export]
    use crate::examples::ExampleParser;
    #[pymodule_export]
    use crate::hooks::{_block, _panic};
    #[pymodule_export]
    use crate::loader::Loader;
    #[pymodule_export]
    use crate::record_files::RecordFiles;
    #[pymodule_export]
    use crate::registry::{build, convert, list, remove, show, tag, verify};
    #[pymodule_export]
    use crate::stages::Stages;
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::writing::{Examples, build_code, write};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add(
            "BUILT_IN",
            prep_jobs::recipe::builtin::names().collect::<Vec<_>>(),
        )?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
