//! Any bytes to `pintle_fuzz::continue_token`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::continue_token(data));
