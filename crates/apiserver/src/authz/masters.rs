//! Members of `system:masters` may do everything, whatever the roles say: the way back in.

use kinds::User;

use super::{Authorizer, Decision};
use crate::request::RequestInfo;

/// The group.
pub const GROUP: &str = "system:masters";

/// True for members.
pub fn is_member(user: &User) -> bool {
    user.groups.iter().any(|g| g == GROUP)
}

/// Allows members everything.
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, user: &User, _request: &RequestInfo) -> Decision {
        if is_member(user) { Decision::Allow { reason: String::new() } } else { Decision::silent() }
    }
}
