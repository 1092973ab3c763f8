//! What `./dev up` shows, and the images that it and the whole-cluster tests run. A crate of its
//! own, so that the front door waits for no test to be compiled.

pub mod images;
