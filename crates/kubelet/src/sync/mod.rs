//! Making a pod what its spec says: the life of a pod, the plan, and the task that carries it out.

pub mod crash;
pub mod leave;
pub mod lifecycle;
pub mod mailbox;
pub mod plan;
pub mod start;
pub mod stop;
pub mod waits;
pub mod worker;

#[cfg(test)]
mod real;
#[cfg(test)]
pub mod sim;
#[cfg(test)]
mod sim_deadlines;
#[cfg(test)]
mod sim_ephemeral;
#[cfg(test)]
mod sim_faults;
#[cfg(test)]
mod sim_leave;
#[cfg(test)]
mod sim_lifecycle;
#[cfg(test)]
mod sim_resize;
#[cfg(test)]
mod sim_sandbox;
#[cfg(test)]
mod sim_unsupported;
