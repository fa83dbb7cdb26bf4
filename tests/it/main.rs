//! End-to-end tests.

mod builds;
mod convert;
mod files;
mod load;
