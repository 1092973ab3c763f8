//! Addresses and ports that must be unique in the cluster: taken by compare-and-swap, repaired after crashes.
