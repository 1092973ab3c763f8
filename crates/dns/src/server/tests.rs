//! The server over loopback sockets.
