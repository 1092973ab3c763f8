//! Any bytes to `pintle_fuzz::cni`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::cni(data));
