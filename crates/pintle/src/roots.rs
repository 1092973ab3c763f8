//! Where this cluster's files are, as flags.

use std::path::PathBuf;

use clap::Args;
use host::layout::Layout;

/// The three roots every command shares.
#[derive(Args, Clone, Debug)]
pub struct Roots {
    /// Durable state.
    #[arg(long, default_value = "/var/lib/pintle", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Configuration and kubeconfigs.
    #[arg(long, default_value = "/etc/pintle", value_name = "DIR")]
    pub config_dir: PathBuf,
    /// Sockets and pid files.
    #[arg(long, default_value = "/run/pintle", value_name = "DIR")]
    pub run_dir: PathBuf,
}

impl Roots {
    /// The paths below the roots.
    pub fn layout(&self) -> Layout {
        Layout { state: self.state_dir.clone(), config: self.config_dir.clone(), run: self.run_dir.clone() }
    }
}
