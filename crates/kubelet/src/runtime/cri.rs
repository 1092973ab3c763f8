//! The runtime behind CRI v1.
