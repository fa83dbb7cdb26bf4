//! End-to-end tests.

mod bugs;
mod builds;
mod catalog;
mod cluster;
mod convert;
mod faults;
mod custom;
mod files;
mod imagenet;
mod load;
