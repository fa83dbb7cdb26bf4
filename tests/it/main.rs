//! End-to-end tests.

mod bugs;
mod builds;
mod catalog;
mod cluster;
mod convert;
mod custom;
mod export;
mod faults;
mod files;
mod home;
mod imagenet;
mod in_place;
mod load;
mod revise;
mod statistics;
mod versions;
