//! End-to-end tests.

mod bugs;
mod builds;
mod convert;
mod files;
mod load;
