//! What tests of the kernel's packet filter share: network namespaces of their own, nodes and pods in them, and
//! what `nft` leaves there. Nothing else depends on it.
//!
//! ```text
//!  a test, as it is run ─► is_inside(): no ─► the same test, in new namespaces ─► is_inside(): yes ─► world, rules
//! ```
//!
//! # Invariants
//!
//! * Two listings are the same when nothing but their order differs. [src/rules.rs:
//!   order_is_no_difference_and_everything_else_is]

pub mod rules;
pub mod world;

use std::process::Command;

/// What a test has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Links, addresses and rules.
    Network,
    /// Also what is mounted.
    NetworkAndMounts,
}

/// Is this process the one in namespaces of its own, which the variable says to it? Where it is not, the ignored test
/// of that name of this program is run in them, and has gone well.
///
/// # Panics
/// When that one failed.
#[allow(clippy::disallowed_methods, reason = "says that this process is the one inside")]
pub fn is_inside(variable: &str, test: &str, own: Own) -> bool {
    if std::env::var(variable).is_ok() {
        return true;
    }
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--net");
    if own == Own::NetworkAndMounts {
        command.args(["--mount", "--propagation", "private"]);
    }
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("this program: {error}"));
    command.arg("--").arg(program).args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let status = command.env(variable, "1").status().unwrap_or_else(|error| panic!("unshare: {error}"));
    assert!(status.success(), "inside; see above");
    false
}
