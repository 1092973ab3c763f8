//! Everything that judges requests, over one set of listers: who asks, who may, what may be written.

use std::sync::Arc;

use kinds::User;
use stdx::{Rng, SharedClock};

use crate::admission::{self, Plugin};
use crate::authn::service_account::{self, ServiceAccountTokens};
use crate::authz::{Authorizer, Chain, Decision, NodeAuthorizer, Rbac};
use crate::objects::{self, Objects};
use crate::request::RequestInfo;

/// The judges of one server.
#[derive(Clone)]
pub struct Security {
    pub objects: Arc<dyn Objects>,
    pub rbac: Arc<Rbac>,
    /// Members of `system:masters`, nodes, RBAC.
    pub authorizer: Arc<dyn Authorizer>,
    pub tokens: Arc<ServiceAccountTokens>,
    /// In upstream's order.
    pub plugins: Arc<[Arc<dyn Plugin>]>,
}

impl Security {
    /// Over the listers given; reads nothing until first asked.
    pub fn new(objects: Arc<dyn Objects>, tokens: service_account::Options, clock: SharedClock, rng: Rng) -> Self {
        let rbac = Rbac::new(objects.clone());
        let node = NodeAuthorizer::new(objects.clone());
        let authorizer: Arc<dyn Authorizer> = Arc::new(Chain::standard(node, rbac.clone()));
        let tokens = ServiceAccountTokens::new(tokens, objects.clone(), clock.clone(), rng.clone());
        let parts = admission::Parts {
            objects: objects.clone(),
            rbac: rbac.clone(),
            authorizer: authorizer.clone(),
            clock,
            rng,
        };
        Self { objects, rbac, authorizer, tokens, plugins: admission::default_plugins(&parts).into() }
    }

    /// May `user` do what `request` says? No is only said by what is as new as the question: who has
    /// just been given a permission can use it.
    pub async fn authorize(&self, user: &User, request: &RequestInfo) -> Decision {
        let decision = self.authorizer.authorize(user, request);
        if decision.is_allowed() || self.objects.settle(objects::ROLE_BINDINGS).await.is_err() {
            return decision;
        }
        self.authorizer.authorize(user, request)
    }
}
