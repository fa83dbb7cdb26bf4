//! End-to-end tests live in `it/`; here, the Rust examples of README.md are compiled.

/// README.md of the project.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
