//! Bound ServiceAccount tokens: who a bearer token says it is, if it still is.
