//! Sorting more records than fit in memory: an arena that fills and is sorted, runs on disk, and the one run that remains.

mod arena;
mod run;
mod sorted;

pub(crate) use arena::Arena;
pub use run::SpillCompression;
pub(crate) use run::{Folder, Pace, Run, RunWriter, merge};
pub(crate) use sorted::{Cursor, Duplicate, SortedRun, Watch};
