//! Any bytes to `pintle_fuzz::channels`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::channels(data));
