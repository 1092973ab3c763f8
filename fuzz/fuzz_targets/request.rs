//! Any bytes to `pintle_fuzz::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::request(data));
