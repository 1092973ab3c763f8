//! The node agent: makes the pods bound to this node run, and tells the API server how they do.
//!
//! ```text
//!  API server ──watch──► pods ──► one task per pod (sync::worker)
//!                                   │  look ─ plan ─ begin ─ describe ─ write
//!                                   ├──► runtime (CRI)     ◄── hints, relist
//!                                   ├──► volumes, cgroups, images, probes, hooks
//!                                   └──► status patches, events, Waits ──► API server
//!  node::keeper ──► Node, Lease            server ──► logs, stats, metrics over HTTPS
//!  static_pods: manifests on the node ──► the same tasks; objects in the API only show them
//! ```
//!
//! What is decided is decided in pure functions: `sync::plan`, `sync::lifecycle`, `status::generate`,
//! `admit`, `probe::threshold`, `image::policy`, everything in `container`. The tasks around them do
//! the I/O and may be stopped at any point.
//!
//! What always holds, and the test that fails otherwise:
//!
//! - Pods outlive the kubelet; the next one adopts them and restarts no container, also under another
//!   hostname: `a_node_registers_runs_its_pod_survives_a_restart_and_ends_it`.
//! - Of a container's name at most one runs, of a pod's sandboxes at most one is ready, and an end
//!   that was reported is never taken back, whatever fails in between: `faults_in_any_order_heal`.
//! - Of a pod that is gone nothing is left, and what nobody claims is ended: the same,
//!   `what_nobody_claims_is_ended`.
//! - No path of a volume leads out of it: `no_link_leads_out`, `paths_that_leave_are_refused`.
//! - A status that says nothing new is not written: `times_move_only_when_a_status_changes`,
//!   `only_what_changed_is_sent`.
//!
//! # Invariants
//!
//! * A restarted kubelet restarts no container. [src/sync/sim.rs:
//!   a_restarted_kubelet_restarts_no_container]
//! * Faults in any order heal. [src/sync/sim.rs: faults_in_any_order_heal]
//! * What a pod is allocated outlives the kubelet, and no two pods are given the same room.
//!   [src/sync/sim_resize.rs: a_kubelet_that_dies_between_goes_on; src/sync/sim_resize.rs:
//!   room_that_another_pod_leaves_is_taken]
//! * An ephemeral container starts once, and its pod does not notice it. [src/sync/sim_ephemeral.rs:
//!   it_runs_once_beside_a_pod_that_does_not_notice]
//! * Static pods need no API server, and what shows them there comes back. [src/run_tests.rs:
//!   static_pods_need_no_api_server; src/run_tests.rs: a_static_pod_is_shown_by_a_mirror_that_comes_back]
//! * What is asked of the kubelet is asked of the API server first, by the narrowest permission that allows
//!   it, and no path of the node's logs leads out. [src/server/tests.rs: fine_grained_permissions;
//!   src/server/node_logs.rs: nothing_leads_out]
//! * A node that is short of something ends the pod that is to end first, and tells why, after what nobody needs is
//!   gone; what it was short of it says. [src/evict/rank.rs: memory; src/evict/rank.rs: disk; src/run_tests.rs:
//!   a_node_that_is_short_of_memory_ends_a_pod; src/run_tests.rs:
//!   a_node_that_is_short_of_disk_gives_back_what_nobody_needs_first; src/node/keeper_tests.rs:
//!   a_shortage_that_is_over_at_once_is_told]
//! * No path leads out of a pod's own directory. [src/volume/beneath.rs: no_link_leads_out;
//!   src/logs/follow_tests.rs: no_link_leads_to_another_file]

pub mod admit;
pub mod cgroup;
pub mod cluster;
pub mod config;
pub mod container;
pub mod context;
pub mod durable;
pub mod ephemeral;
pub mod evict;
pub mod hook;
pub mod image;
pub mod logs;
pub mod metrics;
pub mod node;
mod options;
pub mod pod;
pub mod pod_addresses;
pub mod pods;
pub mod preempt;
mod prepare;
pub mod probe;
pub mod program;
pub mod relist;
pub mod report;
pub mod resize;
mod run;
pub mod runtime;
pub mod server;
pub mod shared;
pub mod shown;
pub mod static_pods;
pub mod stats;
pub mod status;
pub mod sync;
pub mod sysctl;
pub mod unsupported;
pub mod upkeep;
pub mod users;
pub mod volume;

pub use options::{ImageOptions, Options};
pub use run::{Error, run};
