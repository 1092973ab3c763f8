//! Any bytes to `pintle_fuzz::protobuf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pintle_fuzz::protobuf(data));
