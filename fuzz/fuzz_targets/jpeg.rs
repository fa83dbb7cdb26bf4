#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| prep_fuzzed::run("jpeg", bytes));
