//! What is true of one kind: names, storage prefix, scope, subresources, defaults, validation,
//! spec and status rules, allocation claims, table columns. One file per kind, one list: [`ALL`].
//!
//! Kind files know no verbs, no HTTP and no storage. They see a typed view of the object and change
//! it; the write path (in `apiserver`) works on one JSON tree and calls them through [`AnyKind`].
//!
//! ```text
//!                 defaults      claims     finish: prepare → validate → warn
//!  JSON tree ──────────┬───────────┬───────────────────┬──────────────────────► JSON tree
//!                      │  view (typed, one decode each) │
//!                 pod/defaults.rs  service/claims.rs   pod/validate.rs, …
//! ```
//!
//! # Invariants
//!
//! * Names are unique and shapes make sense. [tests/all.rs:
//!   names_are_unique_and_shapes_make_sense]
//! * A view changes only what its rules changed. [src/view.rs:
//!   a_change_touches_only_what_changed; tests/all.rs: a_golden_object_survives_its_view]
//! * No object makes a kind panic. [tests/all.rs: no_object_makes_a_kind_panic]

mod addresses;
mod admission_rules;
mod any;
pub mod api_service;
pub mod binding;
mod cells;
pub mod certificate_signing_request;
pub mod certificates;
mod check;
pub mod cluster_role;
pub mod cluster_role_binding;
pub mod cluster_trust_bundle;
pub mod component_status;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod custom;
pub mod custom_resource_definition;
pub mod daemon_set;
pub mod deployment;
pub mod device_class;
pub mod device_taint_rule;
mod devices;
mod differences;
pub mod endpoint_slice;
pub mod endpoints;
pub mod event;
pub mod event_v1;
pub mod flow_control;
pub mod flow_schema;
pub mod horizontal_pod_autoscaler;
pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod job;
mod key_pair;
pub mod kind;
pub mod lease;
pub mod limit_range;
pub mod metadata;
pub mod mutating_admission_policy;
pub mod mutating_admission_policy_binding;
pub mod mutating_webhook_configuration;
pub mod namespace;
pub mod network_policy;
pub mod node;
mod old_labels;
pub mod only;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_certificate_request;
pub mod pod_disruption_budget;
pub mod pod_template;
pub mod priority_class;
pub mod priority_level_configuration;
mod rbac;
pub mod replica_set;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_metrics;
pub mod resource_quota;
pub mod resource_slice;
pub mod resources;
pub mod reviews;
pub mod role;
pub mod role_binding;
pub mod runtime_class;
pub mod scale;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod shape;
mod shared;
mod sketch;
pub mod stateful_set;
mod storage;
pub mod storage_class;
pub mod storage_version_migration;
pub mod token_request;
pub mod tree;
pub mod validating_admission_policy;
pub mod validating_admission_policy_binding;
pub mod validating_webhook_configuration;
pub mod view;
pub mod volume_attachment;
pub mod volume_attributes_class;
pub mod wait;
mod webhooks;

pub use kind::{
    AnyKind, Cell, Claim, ClaimKind, Claims, ClusterOptions, Column, Columns, Ctx, Fields, Finished, Kind,
    RowConditions, Selectable, User, Verb,
};
pub use shape::{AnyShape, Keep, Names, Scope, Shape};
pub use shared::SharedKind;
/// The class of a volume or claim: its annotation counts before its field.
pub use storage::class as storage_class_of;

/// Every kind, in the order discovery shows groups and resources.
pub static ALL: &[&dyn AnyKind] = &[
    &binding::Binding,
    &component_status::ComponentStatus,
    &config_map::ConfigMap,
    &endpoints::Endpoints,
    &event::Event,
    &limit_range::LimitRange,
    &namespace::Namespace,
    &node::Node,
    &persistent_volume_claim::PersistentVolumeClaim,
    &persistent_volume::PersistentVolume,
    &pod::Pod,
    &pod_template::PodTemplate,
    &replication_controller::ReplicationController,
    &resource_quota::ResourceQuota,
    &secret::Secret,
    &service_account::ServiceAccount,
    &service::Service,
    &api_service::APIService,
    &controller_revision::ControllerRevision,
    &daemon_set::DaemonSet,
    &deployment::Deployment,
    &replica_set::ReplicaSet,
    &stateful_set::StatefulSet,
    &event_v1::Event,
    &reviews::SelfSubjectReview,
    &reviews::TokenReview,
    &reviews::LocalSubjectAccessReview,
    &reviews::SelfSubjectAccessReview,
    &reviews::SelfSubjectRulesReview,
    &reviews::SubjectAccessReview,
    &horizontal_pod_autoscaler::HorizontalPodAutoscaler,
    &horizontal_pod_autoscaler::v1::HorizontalPodAutoscaler,
    &cron_job::CronJob,
    &job::Job,
    &certificate_signing_request::CertificateSigningRequest,
    &cluster_trust_bundle::ClusterTrustBundle,
    &pod_certificate_request::PodCertificateRequest,
    &ingress_class::IngressClass,
    &ingress::Ingress,
    &ip_address::IPAddress,
    &network_policy::NetworkPolicy,
    &service_cidr::ServiceCIDR,
    &pod_disruption_budget::PodDisruptionBudget,
    &cluster_role_binding::ClusterRoleBinding,
    &cluster_role::ClusterRole,
    &role_binding::RoleBinding,
    &role::Role,
    &custom_resource_definition::CustomResourceDefinition,
    &csi_driver::CSIDriver,
    &csi_node::CSINode,
    &csi_storage_capacity::CSIStorageCapacity,
    &storage_class::StorageClass,
    &volume_attachment::VolumeAttachment,
    &volume_attributes_class::VolumeAttributesClass,
    &mutating_admission_policy::MutatingAdmissionPolicy,
    &mutating_admission_policy_binding::MutatingAdmissionPolicyBinding,
    &mutating_webhook_configuration::MutatingWebhookConfiguration,
    &validating_admission_policy::ValidatingAdmissionPolicy,
    &validating_admission_policy_binding::ValidatingAdmissionPolicyBinding,
    &validating_webhook_configuration::ValidatingWebhookConfiguration,
    &priority_class::PriorityClass,
    &lease::Lease,
    &runtime_class::RuntimeClass,
    &endpoint_slice::EndpointSlice,
    &device_class::DeviceClass,
    &device_taint_rule::DeviceTaintRule,
    &resource_claim::ResourceClaim,
    &resource_claim_template::ResourceClaimTemplate,
    &resource_slice::ResourceSlice,
    &flow_schema::FlowSchema,
    &priority_level_configuration::PriorityLevelConfiguration,
    &storage_version_migration::StorageVersionMigration,
    &resource_metrics::NodeMetrics,
    &resource_metrics::PodMetrics,
    &wait::Wait,
];

/// The kind a path names: `find("apps", "v1", "deployments")`.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static dyn AnyKind> {
    ALL.iter().copied().find(|kind| {
        let shape = kind.shape();
        shape.plural == plural && shape.group == group && shape.version == version
    })
}

/// The kind an object names: `by_kind("apps", "v1", "Deployment")`.
pub fn by_kind(group: &str, version: &str, name: &str) -> Option<&'static dyn AnyKind> {
    ALL.iter().copied().find(|kind| {
        let shape = kind.shape();
        shape.kind == name && shape.group == group && shape.version == version
    })
}

/// The kinds whose own form is stored: each has one watch cache. The others are virtual, or
/// another version of one of these.
pub fn stored() -> impl Iterator<Item = &'static dyn AnyKind> {
    ALL.iter().copied().filter(|kind| kind.shape().keep != Keep::Virtual && kind.stored_as().is_none())
}
