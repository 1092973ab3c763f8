//! Container logs as the runtime writes them: reading, following, rotating.

pub mod follow;
pub mod line;
pub mod rotate;
pub mod tail;
