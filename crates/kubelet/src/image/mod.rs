//! Images: which one is meant, who may fetch it, whether and when it is fetched.

pub mod collect;
pub mod collector;
pub mod credentials;
pub mod matching;
pub mod policy;
pub mod provider;
pub mod puller;
pub mod rate;
pub mod records;
pub mod reference;
pub mod verify;
