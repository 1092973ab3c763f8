//! What can be done to any resource: one file per verb. Verb files know no kinds.
