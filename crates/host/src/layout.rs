//! Where things live on disk. Every path derives from three roots, each movable by a flag.

use std::path::{Path, PathBuf};

/// The three roots and what lies below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Durable state; `/var/lib/pintle`.
    pub state: PathBuf,
    /// Configuration and kubeconfigs; `/etc/pintle`.
    pub config: PathBuf,
    /// Sockets and pid files; `/run/pintle`.
    pub run: PathBuf,
}

impl Default for Layout {
    fn default() -> Self {
        Self { state: "/var/lib/pintle".into(), config: "/etc/pintle".into(), run: "/run/pintle".into() }
    }
}

impl Layout {
    /// Everything below one folder: several clusters on one machine, and tests.
    pub fn below(root: &Path) -> Self {
        Self { state: root.join("state"), config: root.join("config"), run: root.join("run") }
    }

    /// The embedded store.
    pub fn store(&self) -> PathBuf {
        self.state.join("store")
    }

    /// Authorities and certificates.
    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// The kubelet's pods and volumes.
    pub fn kubelet(&self) -> PathBuf {
        self.state.join("kubelet")
    }

    /// Container logs, one folder per pod.
    pub fn pod_logs(&self) -> PathBuf {
        self.state.join("pod-logs")
    }

    /// What was changed on the host.
    pub fn journal(&self) -> PathBuf {
        self.state.join("host-journal")
    }

    /// The runtime's images and snapshots.
    pub fn containerd_root(&self) -> PathBuf {
        self.state.join("containerd")
    }

    /// The runtime's shims and mounts.
    pub fn containerd_state(&self) -> PathBuf {
        self.run.join("containerd")
    }

    /// The runtime's socket.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    /// The runtime's configuration.
    pub fn containerd_config(&self) -> PathBuf {
        self.config.join("containerd.toml")
    }

    /// The runtime's own output.
    pub fn containerd_log(&self) -> PathBuf {
        self.state.join("containerd.log")
    }

    /// Pid and start time of the runtime we started.
    pub fn containerd_pid(&self) -> PathBuf {
        self.run.join("containerd.pid")
    }

    /// Registry mirrors, in containerd's own format; the user may add to it.
    pub fn registry_config(&self) -> PathBuf {
        self.config.join("certs.d")
    }

    /// Manifests of static pods: every file in it is a pod that the node runs.
    pub fn manifests(&self) -> PathBuf {
        self.config.join("manifests")
    }

    /// CNI network configuration.
    pub fn cni_config(&self) -> PathBuf {
        self.config.join("cni")
    }

    /// What the CNI plugin remembers: attachments and their addresses.
    pub fn cni_state(&self) -> PathBuf {
        self.state.join("cni")
    }

    /// The CNI plugins that the runtime executes.
    pub fn cni_plugins(&self) -> PathBuf {
        self.cni_state().join("bin")
    }

    /// Where the CNI plugin asks whether a pod's network policies are in the kernel.
    pub fn policy_socket(&self) -> PathBuf {
        self.run.join("policy.sock")
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.config.join("admin.kubeconfig")
    }

    /// Pid and start time of `pintle up`.
    pub fn pid(&self) -> PathBuf {
        self.run.join("pintle.pid")
    }

    /// The output of a `pintle up` that runs in the background.
    pub fn log(&self) -> PathBuf {
        self.state.join("pintle.log")
    }

    /// Snapshots that are taken on a schedule.
    pub fn snapshots(&self) -> PathBuf {
        self.state.join("snapshots")
    }

    /// The roots, each with the names we make in it. `reset` removes these and nothing else.
    pub fn owned(&self) -> [(&Path, &'static [&'static str]); 3] {
        [(&self.run, RUN), (&self.config, CONFIG), (&self.state, STATE)]
    }
}

/// A name that ends with `*` stands for all that begin so.
const STATE: &[&str] = &[
    "cni",
    "containerd",
    "containerd.log",
    "host-journal",
    "kubelet",
    "pause.tar",
    "pintle.log",
    "pki",
    "pod-logs",
    "snapshots",
    "store",
    "store.before-restore-*",
    "store.restoring-*",
];
const CONFIG: &[&str] = &[
    ".admin.kubeconfig.*",
    ".controller-manager.kubeconfig.*",
    ".dns.kubeconfig.*",
    ".kubelet.kubeconfig.*",
    ".network-policy.kubeconfig.*",
    ".proxy.kubeconfig.*",
    ".scheduler.kubeconfig.*",
    "admin.kubeconfig",
    "certs.d",
    "cni",
    "containerd.toml",
    "controller-manager.kubeconfig",
    "dns.kubeconfig",
    "kubelet.kubeconfig",
    "manifests",
    "network-policy.kubeconfig",
    "proxy.kubeconfig",
    "scheduler.kubeconfig",
];
const RUN: &[&str] = &[
    "containerd",
    "containerd.part",
    "containerd.pid",
    "containerd.sock",
    "containerd.sock.ttrpc",
    "pintle.part",
    "pintle.pid",
    "policy.sock",
];

/// True when a name is one of `owned`.
pub fn is_owned(owned: &[&str], name: &str) -> bool {
    owned.iter().any(|own| match own.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *own,
    })
}
