//! End-to-end tests.

mod bugs;
mod builds;
mod cluster;
mod convert;
mod files;
mod load;
