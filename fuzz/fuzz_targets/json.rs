//! Any bytes to `pintle_fuzz::json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::json(data));
