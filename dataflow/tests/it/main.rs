//! Whole jobs: what they write, what they hold, and how they fail.

mod bounds;
mod examples;
mod failure;
mod operators;
mod order;
mod replay;
mod support;
mod trace;
