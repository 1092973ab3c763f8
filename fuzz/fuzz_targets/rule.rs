//! Any bytes to `pintle_fuzz::rule`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::rule(data));
