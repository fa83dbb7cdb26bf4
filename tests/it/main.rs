//! End-to-end tests.

mod builds;
mod files;
mod load;
