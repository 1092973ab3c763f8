//! Tells the linker how to make less of the same. It keeps one of functions that are alike: every crate that
//! decodes a pod brings the decoder of a pod, and most of what is generic ends up alike. And it writes down in a
//! bit each, not in 24 bytes, which pointers move with the program: 2 MB less.

use std::process::Command;

#[allow(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // The target whose linker, unless another is named, is rustc's own.
    let own = is("TARGET", "x86_64-unknown-linux-gnu") && std::env::var("RUSTC_LINKER").is_err();
    if own && is("PROFILE", "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        if loader().is_some_and(|version| version >= (2, 36)) {
            println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        }
    }
}

/// The version of this machine's C library, whose loader reads packed relocations from 2.36 on: a program built
/// with an older one runs with that.
fn loader() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}
