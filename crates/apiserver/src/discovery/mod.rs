//! What is served: `/api`, `/apis` and below, legacy and aggregated, from the list of kinds.
