//! The typed view of a CustomResourceDefinition. Schemas stay trees: they are walked, not typed, and a
//! typed one would be thirty times as large.

use api::k8s::{ClusterResourceScope, Metadata, Resource};
use api::meta::apis::meta::v1::{ObjectMeta, Time};
use api::types::admissionregistration::v1::WebhookClientConfig;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// What is null is as if it were not there.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(input: D) -> Result<T, D::Error> {
    Option::deserialize(input).map(Option::unwrap_or_default)
}

/// A CustomResourceDefinition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Definition {
    pub api_version: String,
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    pub metadata: ObjectMeta,
    pub spec: Spec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl Resource for Definition {
    const API_VERSION: &'static str = "apiextensions.k8s.io/v1";
    const GROUP: &'static str = "apiextensions.k8s.io";
    const KIND: &'static str = "CustomResourceDefinition";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "customresourcedefinitions";
    type Scope = ClusterResourceScope;
}

impl Metadata for Definition {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub group: String,
    #[serde(deserialize_with = "or_default")]
    pub names: Names,
    /// `Cluster` or `Namespaced`.
    #[serde(deserialize_with = "or_default")]
    pub scope: String,
    #[serde(deserialize_with = "or_default")]
    pub versions: Vec<Version>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversion: Option<Conversion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_unknown_fields: Option<bool>,
}

/// What the resource is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Names {
    #[serde(deserialize_with = "or_default")]
    pub plural: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub singular: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub list_kind: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
}

/// One version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Version {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    pub served: bool,
    pub storage: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecation_warning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Schema>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresources: Option<Subresources>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub additional_printer_columns: Vec<PrinterColumn>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub selectable_fields: Vec<SelectableField>,
}

impl Version {
    /// The schema, when there is one.
    pub fn open_api_v3_schema(&self) -> Option<&Value> {
        self.schema.as_ref()?.open_api_v3_schema.as_ref()
    }

    /// True with a `status` subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
    }
}

/// The schema of a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schema {
    #[serde(rename = "openAPIV3Schema", skip_serializing_if = "Option::is_none")]
    pub open_api_v3_schema: Option<Value>,
}

/// The subresources of a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subresources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
}

/// Where `scale` reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scale {
    #[serde(deserialize_with = "or_default")]
    pub spec_replicas_path: String,
    #[serde(deserialize_with = "or_default")]
    pub status_replicas_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector_path: Option<String>,
}

/// A column of the Table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PrinterColumn {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub format: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub priority: i32,
    #[serde(deserialize_with = "or_default")]
    pub json_path: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// A field that field selectors may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelectableField {
    #[serde(deserialize_with = "or_default")]
    pub json_path: String,
}

/// How objects of one version become those of another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conversion {
    /// `None` or `Webhook`.
    #[serde(deserialize_with = "or_default")]
    pub strategy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookConversion>,
}

/// The webhook that converts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WebhookConversion {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_config: Option<WebhookClientConfig>,
    #[serde(deserialize_with = "or_default")]
    pub conversion_review_versions: Vec<String>,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "or_default")]
    pub accepted_names: Names,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub stored_versions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "or_default")]
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Definition {
    /// True when the condition is there and `True`.
    pub fn is(&self, condition: &str) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|found| found.kind == condition && found.status == "True")
    }

    /// The version that is stored.
    pub fn storage_version(&self) -> Option<&Version> {
        self.spec.versions.iter().find(|version| version.storage)
    }
}
