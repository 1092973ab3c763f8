//! Tells the linker to keep one of functions that are the same: every crate that decodes a pod brings the
//! decoder of a pod, and most of what is generic ends up alike.

#[allow(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // The target whose linker, unless another is named, is rustc's own.
    let own = is("TARGET", "x86_64-unknown-linux-gnu") && std::env::var("RUSTC_LINKER").is_err();
    if own && is("PROFILE", "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
