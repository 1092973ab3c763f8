//! Any bytes to `pintle_fuzz::spdy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::spdy(data));
