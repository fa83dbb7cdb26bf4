//! A dataset registry on an object store: a log of atomic commits, versions and manifests.

pub mod fingerprint;
pub mod manifest;
pub mod name;
