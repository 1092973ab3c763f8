//! The one write path: every create, update and delete of every kind goes through here.
