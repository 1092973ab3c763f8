//! Client certificates: the common name is the user, the organizations are the groups.
