//! Builds the pause program for the target, statically and without a standard library, so that the
//! binary can carry a sandbox image and needs no registry for it.

use std::path::PathBuf;
use std::process::Command;

#[allow(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() {
    println!("cargo:rerun-if-changed=pause/pause.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let env = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(env("OUT_DIR")).join("pause");
    let status = Command::new(env("RUSTC"))
        .args(["--edition", "2024", "--crate-name", "pause", "--crate-type", "bin", "--target"])
        .arg(env("TARGET"))
        .args(["-C", "panic=abort", "-C", "opt-level=z", "-C", "relocation-model=static", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"])
        .args(["-C", "link-arg=-Wl,--build-id=none,-z,noseparate-code,-z,norelro"])
        .arg("-o")
        .arg(&out)
        .arg("pause/pause.rs")
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("cannot build the pause program: {other:?}"),
    }
}
