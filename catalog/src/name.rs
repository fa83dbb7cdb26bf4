//! Dataset names: `name`, `name/config`, `name:3.0.2`, `name@tag`, `name@log=7`.

/// A parsed dataset name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetName {
    /// The dataset.
    pub name: String,
    /// Its config, where there is one.
    pub config: Option<String>,
    /// Which version is asked for.
    pub selector: Selector,
}

/// Which version of a dataset a name asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selector {
    /// The newest version.
    Latest,
    /// `:3.0.2`.
    Version(String),
    /// `@tag`.
    Tag(String),
    /// `@log=7`: what the catalog said after log entry 7.
    Log(u64),
}
