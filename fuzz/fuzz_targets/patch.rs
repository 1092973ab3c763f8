//! Any bytes to `pintle_fuzz::patch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::patch(data));
