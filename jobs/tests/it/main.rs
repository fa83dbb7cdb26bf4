//! The command as its user sees it, and the example of a builder.

mod command;
mod example;
mod process;
mod reports;
mod watched;
