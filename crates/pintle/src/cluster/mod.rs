//! The parts of a cluster that runs in one process, and how they are put together.

pub mod address;
pub mod families;
pub mod identities;
pub mod kubeconfigs;
pub mod listening;
pub mod next;
pub mod node_ready;
pub mod pod_network;
pub mod pod_upkeep;
pub mod preflight;
pub mod run;
pub mod snapshots;
pub mod user;
