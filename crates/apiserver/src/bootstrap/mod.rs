//! What a cluster holds before anybody asked: namespaces, roles, priority classes.

pub mod roles;
