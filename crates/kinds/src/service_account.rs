//! ServiceAccount: who a pod is.

use api::types::core::v1 as core;
use machinery::names;

use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::{Shape, Subresource};

/// Says that pods may mount only the secrets that the account names.
const ENFORCES: &str = "kubernetes.io/enforce-mountable-secrets";

pub struct ServiceAccount;

impl Kind for ServiceAccount {
    type Object = core::ServiceAccount;
    const SHAPE: Shape = Shape::namespaced("", "v1", "ServiceAccount", "serviceaccounts")
        .singular("serviceaccount")
        .short(&["sa"])
        .answers_deleted()
        .subresources(&[Subresource {
            name: "token",
            group: "authentication.k8s.io",
            version: "v1",
            kind: "TokenRequest",
            verbs: &["create"],
        }]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn prepare_create(_ctx: &Ctx, account: &mut Self::Object) {
        names_only(account);
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, _old: &Self::Object) {
        names_only(new);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let enforces = |account: &Self::Object| {
            account.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(ENFORCES))
        };
        // Who had it already has been told.
        if old.is_some_and(enforces) || !enforces(new) {
            return Vec::new();
        }
        let told = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        vec![format!("metadata.annotations[{ENFORCES}]: {told}")]
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::AGE] },
            row: |account, now| (vec![cells::name(&account.metadata), cells::of(&account.metadata, now)], Vec::new()),
        }
    }
}

/// Of a Secret the account may use only the name counts.
fn names_only(account: &mut core::ServiceAccount) {
    for secret in account.secrets.iter_mut().flatten() {
        *secret = core::ObjectReference { name: secret.name.take(), ..Default::default() };
    }
}
