//! End-to-end tests.

mod files;
