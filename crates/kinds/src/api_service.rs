//! APIService: one version of a group, and the Service of the server that answers for it; without one, this
//! server answers itself.

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use api::meta::apis::meta::v1::Time;
use apiregistration::{APIServiceCondition, APIServiceSpec, APIServiceStatus};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::certificates;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

/// The group of the kind.
pub const GROUP: &str = "apiregistration.k8s.io";
/// The condition that says whether requests are answered.
pub const AVAILABLE: &str = "Available";
/// The reason of the condition, and its message, where this server answers itself.
pub const LOCAL: (&str, &str) = ("Local", "Local APIServices are always available");
/// Where a server listens unless its APIService says otherwise.
pub const PORT: i32 = 443;
const STATUSES: &[&str] = &["True", "False", "Unknown"];
const HIGHEST_GROUP: i32 = 20_000;
const HIGHEST_VERSION: i32 = 1000;

pub struct APIService;

impl Kind for APIService {
    type Object = apiregistration::APIService;
    const SHAPE: Shape = Shape::cluster(GROUP, "v1", "APIService", "apiservices")
        .singular("apiservice")
        .categories(&["api-extensions"])
        .prefix("apiregistration.k8s.io/apiservices")
        .status_without_generation()
        .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences"])
        .status_resets(&[&["spec"], &["metadata"]])
        .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn defaults(_ctx: &Ctx, object: &mut Self::Object) {
        if let Some(service) = object.spec.as_mut().and_then(|spec| spec.service.as_mut()) {
            service.port.get_or_insert(PORT);
        }
    }

    fn prepare_create(ctx: &Ctx, object: &mut Self::Object) {
        if object.spec.as_ref().is_none_or(|spec| spec.service.is_none()) {
            let condition = APIServiceCondition {
                type_: AVAILABLE.into(),
                status: "True".into(),
                last_transition_time: Some(Time(ctx.now)),
                reason: Some(LOCAL.0.into()),
                message: Some(LOCAL.1.into()),
            };
            object.status = Some(APIServiceStatus { conditions: Some(vec![condition]) });
        }
    }

    fn validate(_ctx: &Ctx, object: &Self::Object, errors: &mut FieldErrors) {
        let none = APIServiceSpec::default();
        validate(object.metadata.name.as_deref().unwrap_or_default(), object.spec.as_ref().unwrap_or(&none), errors);
    }

    /// Charts ship a bundle that a controller fills in later, so that what is no bundle is taken, as upstream takes
    /// it; that it proves nobody until then is said here, and in the condition.
    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let bundle = new.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
        let is_odd = bundle.is_some_and(|bundle| !bundle.0.is_empty() && !certificates::is_bundle(&bundle.0));
        let warning = "spec.caBundle: has no certificate that can be read; nobody is believed until it has";
        is_odd.then(|| warning.to_owned()).into_iter().collect()
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let conditions = new.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for (at, condition) in conditions.enumerate() {
            if !STATUSES.contains(&condition.status.as_str()) {
                let path = Path::new("status").child("conditions").index(at).child("status");
                errors.not_supported(&path, condition.status.as_str(), STATUSES);
            }
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Service", "The Service of the server that answers, or Local."),
                    Column::text("Available", "Whether requests are answered."),
                    Column::AGE,
                ]
            },
            row: |object, now| {
                let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
                let place = service.map_or_else(
                    || "Local".to_owned(),
                    |service| {
                        let part = |text: &Option<String>| text.clone().unwrap_or_default();
                        format!("{}/{}", part(&service.namespace), part(&service.name))
                    },
                );
                let cells = vec![
                    cells::name(&object.metadata),
                    place.into(),
                    available(object.status.as_ref()).into(),
                    cells::of(&object.metadata, now),
                ];
                (cells, Vec::new())
            },
        }
    }
}

/// `True`, or what it is instead and why.
fn available(status: Option<&APIServiceStatus>) -> String {
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let Some(condition) = conditions.find(|condition| condition.type_ == AVAILABLE) else { return "Unknown".into() };
    match condition.reason.as_deref() {
        Some(reason) if condition.status != "True" && !reason.is_empty() => format!("{} ({reason})", condition.status),
        _ => condition.status.clone(),
    }
}

fn validate(name: &str, spec: &APIServiceSpec, errors: &mut FieldErrors) {
    let (group, version) = (spec.group.as_deref().unwrap_or_default(), spec.version.as_deref().unwrap_or_default());
    let wanted = format!("{version}.{group}");
    if name != wanted && names::path_segment(name).is_empty() {
        let why = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        errors.invalid(&Path::new("metadata").child("name"), name, why);
    }
    let path = Path::new("spec");
    if group.is_empty() && version != "v1" {
        errors.required(&path.child("group"), "only v1 may have an empty group and it better be legacy kube");
    }
    if !group.is_empty() {
        check::all(names::dns1123_subdomain(group), &path.child("group"), group, errors);
    }
    check::all(names::dns1035_label(version), &path.child("version"), version, errors);
    if !(1..=HIGHEST_GROUP).contains(&spec.group_priority_minimum) {
        let why = "must be positive and less than 20000";
        errors.invalid(&path.child("groupPriorityMinimum"), spec.group_priority_minimum, why);
    }
    if !(1..=HIGHEST_VERSION).contains(&spec.version_priority) {
        errors.invalid(&path.child("versionPriority"), spec.version_priority, "must be positive and less than 1000");
    }
    let bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
    let insecure = spec.insecure_skip_tls_verify.unwrap_or(false);
    let Some(service) = &spec.service else {
        if bundle > 0 {
            let why = "local APIServices may not have a caBundle";
            errors.invalid(&path.child("caBundle"), format!("{bundle} bytes"), why);
        }
        if insecure {
            let why = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid(&path.child("insecureSkipTLSVerify"), insecure, why);
        }
        return;
    };
    let at = path.child("service");
    for (field, text) in [("namespace", &service.namespace), ("name", &service.name)] {
        if text.as_deref().unwrap_or_default().is_empty() {
            errors.required(&at.child(field), "");
        }
    }
    let port = service.port.unwrap_or(PORT);
    if !(1..=65535).contains(&port) {
        errors.invalid(&at.child("port"), port, format!("port is not valid: {}", check::PORT_RANGE));
    }
    if insecure && bundle > 0 {
        errors.invalid(&path.child("insecureSkipTLSVerify"), insecure, "may not be true if caBundle is present");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(name: &str, spec: Value, want: &[&str]) {
        let object: apiregistration::APIService =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("an APIService");
        let mut errors = FieldErrors::new();
        validate(name, &object.spec.unwrap_or_default(), &mut errors);
        let got: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "{name} {spec}");
    }

    #[test]
    fn what_may_be_registered() {
        let spec = |more: Value| {
            let mut spec =
                json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10});
            spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            spec
        };
        let service = json!({"namespace": "n", "name": "s"});
        check("v1.a.b", spec(json!({})), &[]);
        check("v1.", spec(json!({"group": ""})), &[]);
        check("v1.a.b", spec(json!({"service": service, "caBundle": "eA=="})), &[]);
        check(
            "x",
            spec(json!({})),
            &["metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.a.b\""],
        );
        check(
            "v2.",
            spec(json!({"group": "", "version": "v2"})),
            &["spec.group: Required value: only v1 may have an empty group and it better be legacy kube"],
        );
        check(
            "v1.a.b",
            spec(json!({"groupPriorityMinimum": 20001, "versionPriority": 0})),
            &[
                "spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000",
                "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
            ],
        );
        check(
            "v1.a.b",
            spec(json!({"caBundle": "eHh4", "insecureSkipTLSVerify": true})),
            &[
                "spec.caBundle: Invalid value: \"3 bytes\": local APIServices may not have a caBundle",
                "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have \
                 insecureSkipTLSVerify",
            ],
        );
        check(
            "v1.a.b",
            spec(json!({"service": {"port": 0}, "caBundle": "eHh4", "insecureSkipTLSVerify": true})),
            &[
                "spec.service.namespace: Required value",
                "spec.service.name: Required value",
                "spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
                "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
            ],
        );
    }

    #[test]
    fn availability_is_told_with_its_reason() {
        let status = |status: &str, reason: &str| {
            serde_json::from_value(json!({"conditions": [{"type": "Available", "status": status, "reason": reason}]}))
                .expect("a status")
        };
        assert_eq!(available(None), "Unknown");
        assert_eq!(available(Some(&status("True", "Local"))), "True");
        assert_eq!(available(Some(&status("False", "MissingEndpoints"))), "False (MissingEndpoints)");
        assert_eq!(available(Some(&status("False", ""))), "False");
    }
}
