//! Any bytes to `pintle_fuzz::dns`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::dns(data));
