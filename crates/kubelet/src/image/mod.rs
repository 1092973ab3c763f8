//! Images: which one is meant, who may fetch it, whether and when it is fetched.

pub mod credentials;
pub mod policy;
pub mod puller;
pub mod reference;
