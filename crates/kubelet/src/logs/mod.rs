//! Container logs as the runtime writes them: reading, following, rotating.

pub mod line;
pub mod read;
pub mod rotate;
