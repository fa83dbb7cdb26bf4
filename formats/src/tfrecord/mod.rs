//! TFRecord files.
