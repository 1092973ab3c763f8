//! Changing what a running pod has of cpu and memory.
//!
//! ```text
//!  spec.resources changes ─► fits? ─ no ─► PodResizePending: Infeasible (never) or Deferred (not now)
//!                              │ yes
//!                              ▼
//!                     allocated, written down ─► PodResizeInProgress
//!                              │ the pod's cgroup is raised, containers that shrink are updated, then
//!                              │ those that grow, the pod's cgroup is set; or a container is restarted
//!                              ▼
//!                     actuated: every container has what is allocated
//! ```
//!
//! The rest of the kubelet sees a pod as it is allocated ([`Allocations::applied`]), whatever its spec
//! wishes for. What is allocated outlives the kubelet: a spec that changed while it was away is a wish
//! like any other.

pub mod allocations;
pub mod change;
pub mod fit;
pub mod record;
pub mod told;

pub use allocations::Allocations;
pub use change::Actuated;
pub use told::Resizing;
