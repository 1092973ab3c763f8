//! What `./dev up` shows, and the images that it and the whole-cluster tests run. A crate of its
//! own, so that the front door waits for no test to be compiled.
//!
//! # Invariants
//!
//! * An image is made of the distribution's packages alone, and twice the same way is the same image.
//!   [../host/src/image.rs: building_twice_gives_the_same_digest_and_a_whole_archive]

pub mod images;
