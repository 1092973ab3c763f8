//! Where this cluster's files are, as flags.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use host::layout::Layout;

/// The three roots every command shares.
#[derive(Args, Clone, Debug)]
pub struct Roots {
    /// Durable state.
    #[arg(long, default_value = "/var/lib/pintle", value_name = "DIR", global = true)]
    pub state_dir: PathBuf,
    /// Configuration and kubeconfigs.
    #[arg(long, default_value = "/etc/pintle", value_name = "DIR", global = true)]
    pub config_dir: PathBuf,
    /// Sockets and pid files.
    #[arg(long, default_value = "/run/pintle", value_name = "DIR", global = true)]
    pub run_dir: PathBuf,
}

impl Roots {
    /// The paths below the roots.
    pub fn layout(&self) -> Layout {
        Layout { state: self.state_dir.clone(), config: self.config_dir.clone(), run: self.run_dir.clone() }
    }

    /// The flags another command needs to mean the same cluster, each with a space before it; none
    /// where everything is where it is by default.
    pub fn flags(&self) -> String {
        let usual = Layout::default();
        let mut out = String::new();
        for (name, is, usually) in [
            ("state-dir", &self.state_dir, &usual.state),
            ("config-dir", &self.config_dir, &usual.config),
            ("run-dir", &self.run_dir, &usual.run),
        ] {
            if is != usually {
                // Writing to a string does not fail.
                let _ = write!(out, " --{name}={}", is.display());
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_usual_is_said() {
        let usual = Layout::default();
        let mut roots = Roots { state_dir: usual.state, config_dir: usual.config, run_dir: usual.run };
        assert_eq!(roots.flags(), "");
        roots.config_dir = "/srv/c".into();
        assert_eq!(roots.flags(), " --config-dir=/srv/c");
    }
}
