//! Why things were written: the journal of causes.

pub mod causes;
