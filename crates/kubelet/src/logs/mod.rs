//! Container logs as the runtime writes them: reading, following, rotating.

pub mod follow;
pub mod line;
pub mod read;
pub mod rotate;
pub mod tail;
