//! The sandbox image: one static program of about a kilobyte, carried in the binary.

use crate::image::{File, Image, Layer, Settings};

/// The program, built by `build.rs` from `pause/pause.rs`.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The image's name. No registry has it and none is asked for it.
pub const NAME: &str = "pintle.invalid/pause:1";

/// The image, ready to import.
pub fn image() -> std::io::Result<Image> {
    let layer = Layer::from_files(&[File { path: "pause", mode: 0o755, content: PROGRAM }])?;
    let settings = Settings { entrypoint: vec!["/pause".into()], user: "65535:65535".into(), ..Settings::default() };
    Image::build(NAME, &settings, vec![layer])
}
