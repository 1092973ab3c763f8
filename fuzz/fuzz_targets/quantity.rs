//! Any bytes to `pintle_fuzz::quantity`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::quantity(data));
