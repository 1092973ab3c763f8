//! `NodeMetrics` and `PodMetrics` of `metrics.k8s.io/v1beta1`: what nodes and containers use.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ClusterResourceScope, ListableResource, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};

/// The group.
pub const GROUP: &str = "metrics.k8s.io";
/// The group and its version.
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// What one container uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerMetrics {
    pub name: String,
    pub usage: BTreeMap<String, Quantity>,
}

macro_rules! metrics {
    ($(#[$about:meta])* $name:ident, $list:literal, $kind:literal, $plural:literal, $scope:ty, $field:ident: $of:ty) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name {
            pub api_version: String,
            pub kind: String,
            pub metadata: ObjectMeta,
            /// The end of the window.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub timestamp: Option<Time>,
            /// What the use of processors is an average of.
            pub window: String,
            pub $field: $of,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    api_version: API_VERSION.into(),
                    kind: $kind.into(),
                    metadata: ObjectMeta::default(),
                    timestamp: None,
                    window: String::new(),
                    $field: Default::default(),
                }
            }
        }

        impl Resource for $name {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = "v1beta1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl ListableResource for $name {
            const LIST_KIND: &'static str = $list;
        }

        impl Metadata for $name {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

metrics!(
    /// What a node uses.
    NodeMetrics, "NodeMetricsList", "NodeMetrics", "nodes", ClusterResourceScope, usage: BTreeMap<String, Quantity>
);
metrics!(
    /// What the containers of a pod use.
    PodMetrics, "PodMetricsList", "PodMetrics", "pods", NamespaceResourceScope, containers: Vec<ContainerMetrics>
);
