//! What may change or refuse a write: one file per plugin, in upstream's order.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use kinds::{AnyKind, User, Verb};
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;
use stdx::{Rng, SharedClock};
use tracing::Instrument;

use crate::authz::{Authorizer, Rbac};
use crate::metrics::admission::Phase;
use crate::objects::{Objects, Resource};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::traces;

pub mod certificate_approval;
pub mod certificate_signing;
pub mod certificate_subject_restriction;
pub mod cluster_trust_bundle_attest;
pub mod default_class;
pub mod default_toleration_seconds;
pub mod device_access;
pub mod limit_ranger;
pub mod namespace_lifecycle;
mod node_requests;
pub mod node_restriction;
pub mod persistent_volume_claim_resize;
pub mod priority;
pub mod rbac_escalation;
pub mod runtime_class;
pub mod service_account;
mod signers;
pub mod storage_object_in_use_protection;
pub mod taint_nodes_by_condition;

/// What plugins work with.
#[derive(Clone)]
pub struct Parts {
    pub objects: Arc<dyn Objects>,
    pub rbac: Arc<Rbac>,
    /// The whole chain of authorizers, for permissions that admission asks about.
    pub authorizer: Arc<dyn Authorizer>,
    pub clock: SharedClock,
    pub rng: Rng,
}

/// The plugins of a server, in upstream's order; what upstream judges where it stores (access to devices,
/// the escalation check of RBAC) comes last.
pub fn default_plugins(parts: &Parts) -> Vec<Arc<dyn Plugin>> {
    let objects = || parts.objects.clone();
    let authorizer = || parts.authorizer.clone();
    vec![
        Arc::new(namespace_lifecycle::NamespaceLifecycle::new(objects())),
        Arc::new(limit_ranger::LimitRanger::new(objects())),
        Arc::new(service_account::ServiceAccount::new(objects(), parts.clock.clone(), parts.rng.clone())),
        Arc::new(node_restriction::NodeRestriction::new(objects())),
        Arc::new(taint_nodes_by_condition::TaintNodesByCondition),
        Arc::new(priority::Priority::new(objects())),
        Arc::new(default_toleration_seconds::DefaultTolerationSeconds),
        Arc::new(default_class::DefaultClass::storage(objects())),
        Arc::new(storage_object_in_use_protection::StorageObjectInUseProtection),
        Arc::new(persistent_volume_claim_resize::PersistentVolumeClaimResize(objects())),
        Arc::new(runtime_class::RuntimeClass(objects())),
        Arc::new(certificate_approval::CertificateApproval(authorizer())),
        Arc::new(certificate_signing::CertificateSigning(authorizer())),
        Arc::new(cluster_trust_bundle_attest::ClusterTrustBundleAttest(authorizer())),
        Arc::new(certificate_subject_restriction::CertificateSubjectRestriction),
        Arc::new(default_class::DefaultClass::ingress(objects())),
        Arc::new(device_access::DeviceAccess { objects: objects(), authorizer: authorizer() }),
        Arc::new(rbac_escalation::RbacEscalation::new(parts.rbac.clone(), parts.authorizer.clone(), objects())),
    ]
}

/// Asks every plugin, in order, what it changes or refuses; counts how long each takes, and all together.
///
/// # Errors
/// The first refusal.
pub async fn mutate(
    server: &ApiServer,
    attributes: &Attributes<'_>,
    mut object: Option<&mut Value>,
) -> status::Result<()> {
    let mut step = server.metrics.admission.begin(Phase::Admit, attributes.verb, &server.clock);
    let work = async {
        for (at, plugin) in server.plugins().iter().enumerate() {
            let asked = plugin.mutate(attributes, object.as_deref_mut()).await;
            step.asked(at, asked.is_err());
            asked?;
        }
        Ok(())
    };
    let outcome = work.instrument(tracing::debug_span!(target: traces::TARGET, "Admit")).await;
    step.end(outcome.is_err());
    outcome
}

/// The same for what plugins refuse of the object as it would be stored.
///
/// # Errors
/// The first refusal.
pub async fn validate(server: &ApiServer, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
    let mut step = server.metrics.admission.begin(Phase::Validate, attributes.verb, &server.clock);
    let work = async {
        for (at, plugin) in server.plugins().iter().enumerate() {
            let asked = plugin.validate(attributes, object).await;
            step.asked(at, asked.is_err());
            asked?;
        }
        Ok(())
    };
    let outcome = work.instrument(tracing::debug_span!(target: traces::TARGET, "Validate")).await;
    step.end(outcome.is_err());
    outcome
}

/// The write that is asked about.
pub struct Attributes<'a> {
    pub kind: &'a dyn AnyKind,
    pub request: &'a RequestInfo,
    pub user: &'a User,
    /// Create, Update or Delete; `Update` also for patches.
    pub verb: Verb,
    pub namespace: &'a str,
    /// May be empty on a create with generateName.
    pub name: &'a str,
    pub dry_run: bool,
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

impl Attributes<'_> {
    /// As error texts name the resource.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.kind.shape().group, self.kind.shape().plural)
    }

    /// True for writes to the resource itself or, with `subresource`, to that.
    pub fn is_for(&self, resource: Resource, subresource: &str) -> bool {
        let shape = self.kind.shape();
        shape.group == resource.group && shape.plural == resource.plural && self.request.subresource == subresource
    }

    /// 403 about the object, `why` as its plugin words it.
    pub fn forbidden(&self, object: Option<&Value>, why: impl fmt::Display) -> Box<Status> {
        Status::forbidden(&self.group_resource(), &shown_name(self.name, object), why)
    }
}

/// The text at a pointer, empty when there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The name a denial shows: an object not yet named is called by what its name will begin with.
fn shown_name(name: &str, object: Option<&Value>) -> String {
    let of = |f: fn(&Value) -> &str| object.map(f).unwrap_or_default();
    let names = [name, of(meta::name), of(meta::generate_name)];
    names.into_iter().find(|n| !n.is_empty()).unwrap_or("Unknown").to_owned()
}

/// One admission plugin. Both methods default to agreeing.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Upstream's name of the plugin.
    fn name(&self) -> &'static str;

    /// May change the object (`None` on delete) or refuse.
    async fn mutate(&self, _attributes: &Attributes<'_>, _object: Option<&mut Value>) -> status::Result<()> {
        Ok(())
    }

    /// May refuse; sees the object as it would be stored.
    async fn validate(&self, _attributes: &Attributes<'_>, _object: Option<&Value>) -> status::Result<()> {
        Ok(())
    }
}
