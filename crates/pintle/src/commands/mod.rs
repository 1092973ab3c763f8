//! One file per subcommand.

pub mod down;
pub mod reset;
