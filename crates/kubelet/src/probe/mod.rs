//! Asking containers whether they have started, live and are ready.

pub mod threshold;
