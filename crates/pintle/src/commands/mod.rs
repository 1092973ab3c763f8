//! One file per subcommand. Components that run alone take upstream's flag names.

pub mod certificates;
pub mod dns;
pub mod down;
pub mod evictions;
pub mod images;
pub mod kube_apiserver;
pub mod kube_controller_manager;
pub mod kube_proxy;
pub mod kube_scheduler;
pub mod kubelet;
pub mod network;
pub mod network_policy;
pub mod reset;
pub mod serving;
pub mod snapshot;
pub mod standalone;
pub mod up;
pub mod why;
