//! Any bytes to `pintle_fuzz::selector`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::selector(data));
