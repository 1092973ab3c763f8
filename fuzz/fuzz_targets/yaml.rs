//! Any bytes to `pintle_fuzz::yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::yaml(data));
