//! The watch cache: every object once, as the bytes that clients get, and the recent events.
