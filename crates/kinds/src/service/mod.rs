//! Service: one stable address for a set of pods.

mod claims;
mod columns;
mod defaults;
mod validate;

use api::types::core::v1 as core;
use machinery::field::FieldErrors;
use machinery::names;

use crate::addresses;
use crate::kind::{Claim, Claims, Columns, Ctx, Kind, Selectable};
use crate::only::Part;
use crate::shape::{PROXIED, Shape, Subresource};

/// The value of `clusterIP` that asks for none.
pub const HEADLESS: &str = "None";

pub struct Service;

impl Kind for Service {
    type Object = core::Service;
    const SHAPE: Shape = Shape::namespaced("", "v1", "Service", "services")
        .singular("service")
        .short(&["svc"])
        .categories(&["all"])
        .prefix("services/specs")
        .status_without_generation()
        .answers_deleted()
        .create_on_update()
        .subresources(&[Subresource {
            name: "proxy",
            group: "",
            version: "",
            kind: "ServiceProxyOptions",
            verbs: PROXIED,
        }]);
    const SELECTABLE: &'static [Selectable] =
        &[Selectable::at("spec.clusterIP", &["/spec/clusterIP"]), Selectable::at("spec.type", &["/spec/type"])];
    const CLAIMS: bool = true;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    fn defaults(_ctx: &Ctx, service: &mut Self::Object) {
        defaults::service(service);
    }

    fn claims(ctx: &Ctx, new: &mut Self::Object, old: Option<&Self::Object>, errors: &mut FieldErrors) -> Claims {
        claims::of(ctx, new, old, errors)
    }

    fn held(service: &Self::Object) -> Vec<Claim> {
        claims::held(service)
    }

    fn prepare_create(_ctx: &Ctx, service: &mut Self::Object) {
        claims::settle(service);
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if ctx.subresource == "status" {
            return;
        }
        claims::settle(new);
        claims::drop_what_the_type_has_not(new, old);
    }

    fn validate(_ctx: &Ctx, service: &Self::Object, errors: &mut FieldErrors) {
        validate::service(service, errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate::change(new, old, errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        validate::status(new, errors);
    }

    fn status_warnings(_ctx: &Ctx, new: &Self::Object) -> Vec<String> {
        let balancer = new.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let reported = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
        addresses::balancer_warnings(reported.map(|entry| entry.ip.as_deref()))
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        validate::warnings(new)
    }

    const SHOWN: &'static [Part] = &[
        Part::METADATA,
        Part(
            "spec",
            &[
                Part::whole("type"),
                Part::whole("clusterIP"),
                Part::whole("clusterIPs"),
                Part::whole("externalIPs"),
                Part::whole("externalName"),
                Part::whole("ports"),
                Part::whole("selector"),
            ],
        ),
        Part("status", &[Part::whole("loadBalancer")]),
    ];

    fn columns() -> Columns<Self::Object> {
        Columns { columns: columns::COLUMNS, row: columns::row }
    }
}

/// `spec.type`, with its default.
pub fn type_of(spec: &core::ServiceSpec) -> &str {
    spec.type_.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("ClusterIP")
}

/// True when no address is wanted.
pub fn is_headless(spec: &core::ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some(HEADLESS)
        || spec.cluster_ips.as_ref().and_then(|ips| ips.first()).is_some_and(|ip| ip == HEADLESS)
}

/// True when traffic from outside the cluster is served.
fn is_external(spec: &core::ServiceSpec) -> bool {
    match type_of(spec) {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()),
        _ => false,
    }
}

/// True when the balancer must be told which nodes have a local endpoint.
fn needs_health_check(spec: &core::ServiceSpec) -> bool {
    type_of(spec) == "LoadBalancer" && spec.external_traffic_policy.as_deref() == Some("Local")
}
