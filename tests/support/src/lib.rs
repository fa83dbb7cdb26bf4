//! Fixtures, fakes and comparisons for tests.
